// A peer on js-libp2p that a test drives: commands come as lines of JSON, and so does what it has to say.
//
// It answers on /test/echo/1 (everything back), /test/ack/1 (a frame behind four bytes of length, acknowledged by
// such a frame) and /test/reset/1 (reset after the first byte). It takes part in gossip.
import { randomBytes } from 'node:crypto'
import { createInterface } from 'node:readline'
import { gossipsub } from '@chainsafe/libp2p-gossipsub'
import { noise } from '@chainsafe/libp2p-noise'
import { yamux } from '@chainsafe/libp2p-yamux'
import { identify, identifyPush } from '@libp2p/identify'
import { peerIdFromString } from '@libp2p/peer-id'
import { ping } from '@libp2p/ping'
import { tcp } from '@libp2p/tcp'
import { multiaddr } from '@multiformats/multiaddr'
import { createLibp2p } from 'libp2p'

const ECHO = '/test/echo/1'
const ACK = '/test/ack/1'
const RESET = '/test/reset/1'

const say = (event) => process.stdout.write(JSON.stringify(event) + '\n')

const node = await createLibp2p({
  addresses: { listen: ['/ip4/127.0.0.1/tcp/0'] },
  transports: [tcp()],
  connectionEncrypters: [noise()],
  streamMuxers: [yamux()],
  connectionGater: { denyDialMultiaddr: () => false },
  // Tests connect more often than its default allows.
  connectionManager: { inboundConnectionThreshold: 1000 },
  services: {
    identify: identify(),
    identifyPush: identifyPush(),
    ping: ping(),
    pubsub: gossipsub({ allowPublishToZeroTopicPeers: true, floodPublish: true })
  }
})

async function whole (stream) {
  const chunks = []
  for await (const chunk of stream.source) chunks.push(Buffer.from(chunk.subarray()))
  return Buffer.concat(chunks)
}

await node.handle(ECHO, ({ stream }) => {
  stream.sink(stream.source).catch((error) => stream.abort(error))
})
await node.handle(RESET, async ({ stream }) => {
  for await (const _ of stream.source) break
  stream.abort(new Error('as asked'))
})
await node.handle(ACK, async ({ stream }) => {
  try {
    let got = Buffer.alloc(0)
    for await (const chunk of stream.source) {
      got = Buffer.concat([got, chunk.subarray()])
      if (got.length >= 4 && got.length >= 4 + got.readUInt32BE(0)) break
    }
    await stream.sink([frame(Buffer.from(JSON.stringify({ type: 'ack', size: got.length - 4 })))])
    await stream.close()
  } catch (error) {
    stream.abort(error)
  }
})

function frame (body) {
  const head = Buffer.alloc(4)
  head.writeUInt32BE(body.length)
  return Buffer.concat([head, body])
}

node.addEventListener('peer:connect', (event) => say({ event: 'connected', peer: event.detail.toString() }))
node.addEventListener('peer:disconnect', (event) => say({ event: 'disconnected', peer: event.detail.toString() }))
node.services.pubsub.addEventListener('message', ({ detail }) => {
  say({
    event: 'message',
    topic: detail.topic,
    data: Buffer.from(detail.data).toString(),
    from: detail.from.toString()
  })
})

const commands = {
  async dial ({ addr }) {
    const begun = performance.now()
    await node.dial(multiaddr(addr))
    return { seconds: (performance.now() - begun) / 1000 }
  },
  async hangup ({ peer }) {
    await node.hangUp(peerIdFromString(peer))
    return {}
  },
  async echo ({ peer, size }) {
    const body = randomBytes(size)
    const stream = await node.dialProtocol(peerIdFromString(peer), ECHO)
    const [, back] = await Promise.all([stream.sink([body]), whole(stream)])
    await stream.close()
    return { same: back.equals(body), size: back.length }
  },
  async reset ({ peer }) {
    const stream = await node.dialProtocol(peerIdFromString(peer), ECHO)
    stream.abort(new Error('as asked'))
    return {}
  },
  async expect_reset ({ peer }) {
    const stream = await node.dialProtocol(peerIdFromString(peer), RESET)
    try {
      await Promise.all([stream.sink([Buffer.from('x')]), whole(stream)])
      return { reset: false }
    } catch (error) {
      return { reset: true }
    }
  },
  async unknown ({ peer }) {
    try {
      const stream = await node.dialProtocol(peerIdFromString(peer), '/test/nobody/1')
      stream.abort(new Error('never'))
      return { refused: false }
    } catch (error) {
      return { refused: true }
    }
  },
  async ping ({ peer }) {
    return { seconds: (await node.services.ping.ping(peerIdFromString(peer))) / 1000 }
  },
  async join ({ topic }) {
    node.services.pubsub.subscribe(topic)
    return {}
  },
  async publish ({ topic, data }) {
    await node.services.pubsub.publish(topic, Buffer.from(data))
    return {}
  },
  async listeners ({ topic }) {
    return { count: node.services.pubsub.getSubscribers(topic).length }
  },
  async protocols ({ peer }) {
    return { protocols: (await node.peerStore.get(peerIdFromString(peer))).protocols }
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
