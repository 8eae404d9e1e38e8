// A trader on js-libp2p that a test drives: commands come as lines of JSON, and so does what it has to say.
//
// It takes direct messages (a frame behind four bytes of length) and answers them as it is told: yes, no, wrong (an
// acknowledgement of another message), garbage, reset, or silent.
import { createInterface } from 'node:readline'
import { noise } from '@chainsafe/libp2p-noise'
import { yamux } from '@chainsafe/libp2p-yamux'
import { identify } from '@libp2p/identify'
import { peerIdFromString } from '@libp2p/peer-id'
import { tcp } from '@libp2p/tcp'
import { multiaddr } from '@multiformats/multiaddr'
import { createLibp2p } from 'libp2p'

const PROTOCOL = '/klingon/swap/direct/1.0.0'
let mode = 'yes'

const say = (event) => process.stdout.write(JSON.stringify(event) + '\n')

const node = await createLibp2p({
  addresses: { listen: ['/ip4/127.0.0.1/tcp/0'] },
  transports: [tcp()],
  connectionEncrypters: [noise()],
  streamMuxers: [yamux()],
  connectionGater: { denyDialMultiaddr: () => false },
  services: { identify: identify() }
})

function frame (body) {
  const head = Buffer.alloc(4)
  head.writeUInt32BE(body.length)
  return Buffer.concat([head, body])
}

async function readFrame (stream) {
  let got = Buffer.alloc(0)
  for await (const chunk of stream.source) {
    got = Buffer.concat([got, chunk.subarray()])
    if (got.length >= 4 && got.length >= 4 + got.readUInt32BE(0)) return got.subarray(4, 4 + got.readUInt32BE(0))
  }
  throw new Error('the stream ended too early')
}

await node.handle(PROTOCOL, async ({ stream }) => {
  try {
    const body = await readFrame(stream)
    const message = JSON.parse(body.toString())
    const how = mode
    say({
      event: 'frame', size: body.length, id: message.message_id, type: message.type, number: message.sequence_num, mode: how
    })
    if (how === 'reset') return stream.abort(new Error('as asked'))
    if (how === 'silent') return setTimeout(() => stream.abort(new Error('as asked')), 60000).unref()
    if (how === 'garbage') {
      await stream.sink([frame(Buffer.from('{]'))])
      return await stream.close()
    }
    const payload = {
      message_id: how === 'wrong' ? 'another' : message.message_id,
      sequence_num: message.sequence_num,
      success: how !== 'no'
    }
    if (how === 'no') payload.error = 'as it was told'
    const ack = {
      type: 'ack',
      trade_id: message.trade_id,
      order_id: '',
      from_peer: node.peerId.toString(),
      payload,
      timestamp: Math.floor(Date.now() / 1000),
      message_id: 'ack'
    }
    await stream.sink([frame(Buffer.from(JSON.stringify(ack)))])
    await stream.close()
  } catch (error) {
    stream.abort(error)
  }
})

node.addEventListener('peer:connect', (event) => say({ event: 'connected', peer: event.detail.toString() }))
node.addEventListener('peer:disconnect', (event) => say({ event: 'disconnected', peer: event.detail.toString() }))

const commands = {
  async dial ({ addr }) {
    await node.dial(multiaddr(addr))
    return {}
  },
  async hangup ({ peer }) {
    await node.hangUp(peerIdFromString(peer))
    return {}
  },
  async mode (command) {
    mode = command.mode
    return {}
  },
  async send ({ peer, data }) {
    const stream = await node.dialProtocol(peerIdFromString(peer), PROTOCOL)
    const [, answer] = await Promise.all([stream.sink([frame(Buffer.from(data))]), readFrame(stream)])
    await stream.close()
    return { answer: answer.toString() }
  }
}

say({
  event: 'ready',
  peer: node.peerId.toString(),
  addrs: node.getMultiaddrs().map((address) => address.toString())
})
for await (const text of createInterface({ input: process.stdin })) {
  const command = JSON.parse(text)
  commands[command.do](command).then(
    (answer) => say({ ...answer, event: command.do }),
    (error) => say({ event: 'failed', do: command.do, error: String(error) })
  )
}
process.exit(0)
