// A Pinch client as careless as the real one: it installs its handlers late, exits when a message comes twice, and
// confirms only what it could decrypt. What it receives is in a file before it is confirmed.
//
// In: one JSON command a line, {"do": "connect" | "leave" | "cut" | "send", ...}. Out: one JSON event a line.
// "connect" takes {"after": n, "then": "leave" | "cut" | "stall" | "die" | "die_unconfirmed"}: what to do when n
// messages have come. A connection that is lost is tried again only when it is told to.

'use strict'

const fs = require('node:fs')
const path = require('node:path')
const readline = require('node:readline')
const { randomBytes } = require('node:crypto')
const protobuf = require('protobufjs')
const sodium = require('libsodium-wrappers')
const WebSocket = require('ws')

const LATE_MS = 20
const QUEUE_STATUS_MS = 15000
const QUEUE_MS = 10000
const RETRY_MS = 20
const EXIT_DUPLICATE = 3
const EXIT_QUEUE = 4

const [url, host, seed, folder, proto] = process.argv.slice(2)
const file = path.join(folder, 'messages.jsonl')
const known = new Set()

let Envelope, Plaintext, Type, key, boxKey, address
let ws = null
let open = false // its handlers are installed, and it is not leaving
let came = 0
let order = {}
let queue = null

function tell(event, fields = {}) {
  fs.writeSync(1, JSON.stringify({ event, ...fields }) + '\n')
}

function encode(fields) {
  return Envelope.encode(Envelope.create({ version: 1, ...fields })).finish()
}

// Connecting.

function connect(then) {
  order = then
  came = 0
  const socket = new WebSocket(url, { perMessageDeflate: false })
  ws = socket
  socket.on('error', () => {})
  socket.once('message', (data) => {
    const { nonce, relayHost } = Envelope.decode(data).authChallenge
    if (nonce.length !== 32 || relayHost.toLowerCase() !== host.toLowerCase()) throw new Error('a strange challenge')
    const signed = Buffer.concat([Buffer.from(`pinch-auth-v1\0${relayHost}\0`), nonce])
    const signature = sodium.crypto_sign_detached(signed, key.privateKey)
    socket.send(encode({ type: Type.AUTH_RESPONSE, authResponse: { version: 1, publicKey: key.publicKey, signature, nonce } }))
    socket.once('message', (answer) => entered(socket, Envelope.decode(answer).authResult))
  })
  socket.once('close', (code, reason) => {
    const was = open
    open = false
    if (queue !== null) queue.stop()
    if (socket.entered) tell('closed', { code, reason: reason.toString(), expected: !was })
    else setTimeout(() => ws === socket && connect(then), RETRY_MS)
  })
}

function entered(socket, result) {
  if (!result.success) {
    tell('refused', { reason: result.errorMessage })
    return
  }
  socket.entered = true
  address = result.assignedAddress
  // Whoever awaited the connection goes on only now; what came before is lost to it.
  setTimeout(() => {
    if (ws !== socket || socket.readyState !== WebSocket.OPEN) return
    socket.on('message', (data) => open && handle(data))
    open = true
    queue = waitForQueue()
    tell('connected', { address })
  }, LATE_MS)
}

// Every envelope counts for what was announced, whatever its type.
function waitForQueue() {
  let pending = null
  let timer = setTimeout(() => done(), QUEUE_STATUS_MS)
  const done = (fields = { pending: 0 }) => {
    clearTimeout(timer)
    queue = null
    tell('flushed', fields)
  }
  return {
    announced(count) {
      clearTimeout(timer)
      pending = { left: count, count }
      timer = setTimeout(() => {
        tell('queue_timeout', pending)
        process.exit(EXIT_QUEUE)
      }, QUEUE_MS)
    },
    counted() {
      if (pending !== null && --pending.left === 0) done({ pending: pending.count })
    },
    stop() {
      clearTimeout(timer)
      queue = null
    },
  }
}

// What comes.

function handle(data) {
  const envelope = Envelope.decode(data)
  if (envelope.type === Type.QUEUE_STATUS) {
    queue.announced(envelope.queueStatus.pendingCount)
    return
  }
  if (envelope.type === Type.MESSAGE) take(envelope)
  else if (envelope.type === Type.DELIVERY_CONFIRM) confirmed(envelope)
  else tell('other', { type: envelope.type })
  if (queue !== null) queue.counted()
}

function take(envelope) {
  const id = Buffer.from(envelope.messageId).toString()
  const text = decrypt(envelope.encrypted)
  if (text === null) {
    tell('unreadable', { id })
    return
  }
  if (known.has(id)) {
    tell('duplicate', { id })
    process.exit(EXIT_DUPLICATE)
  }
  const confirmation = confirm(envelope)
  known.add(id)
  fs.appendFileSync(file, JSON.stringify({ id, text }) + '\n')
  came += 1
  const due = came === order.after
  if (due && order.then === 'die_unconfirmed') process.kill(process.pid, 'SIGKILL')
  ws.send(confirmation)
  tell('message', { id, text })
  if (due) act(order.then)
}

function decrypt({ nonce, ciphertext, senderPublicKey }) {
  try {
    const peer = sodium.crypto_sign_ed25519_pk_to_curve25519(senderPublicKey)
    const plain = sodium.crypto_box_open_easy(ciphertext, nonce, peer, boxKey)
    return Buffer.from(Plaintext.decode(plain).content).toString()
  } catch {
    return null
  }
}

function signedPart(id, timestamp) {
  const time = Buffer.alloc(8)
  time.writeBigInt64BE(BigInt(timestamp))
  return Buffer.concat([id, time])
}

function confirm({ messageId, fromAddress }) {
  const timestamp = Date.now()
  const signature = sodium.crypto_sign_detached(signedPart(messageId, timestamp), key.privateKey)
  return encode({
    fromAddress: address,
    toAddress: fromAddress,
    type: Type.DELIVERY_CONFIRM,
    timestamp,
    deliveryConfirm: { messageId, signature, timestamp, state: 'delivered' },
  })
}

const sentTo = new Map()

function confirmed({ deliveryConfirm: { messageId, signature, timestamp, state, wasStored } }) {
  const id = Buffer.from(messageId).toString()
  const signed = signedPart(messageId, timestamp.toString())
  const peer = sentTo.get(id)
  const valid = peer !== undefined && sodium.crypto_sign_verify_detached(signature, signed, peer)
  tell('confirmed', { id, state, valid, was_stored: wasStored })
}

// What it is told to do.

function act(what) {
  open = false
  if (what === 'leave') ws.close(1000)
  else if (what === 'cut') ws.terminate()
  else if (what === 'die') process.kill(process.pid, 'SIGKILL')
  else if (what === 'stall') {
    ws.pause()
    tell('stalled')
  }
}

function send({ to, public_key: publicKey, text }) {
  const now = Date.now()
  const peer = Buffer.from(publicKey, 'hex')
  const id = uuid7(now)
  const nonce = randomBytes(24)
  const plain = Plaintext.encode({ version: 1, sequence: 1, timestamp: now, content: Buffer.from(text), contentType: 'text/plain' })
  const ciphertext = sodium.crypto_box_easy(
    plain.finish(), nonce, sodium.crypto_sign_ed25519_pk_to_curve25519(peer), boxKey,
  )
  sentTo.set(id, peer)
  ws.send(encode({
    fromAddress: address,
    toAddress: to,
    type: Type.MESSAGE,
    messageId: Buffer.from(id),
    timestamp: now,
    encrypted: { nonce, ciphertext, senderPublicKey: key.publicKey },
  }))
  tell('sent', { id })
}

function uuid7(now) {
  const hex = now.toString(16).padStart(12, '0') + '7' + randomBytes(10).toString('hex').slice(0, 19)
  const variant = '89ab'[randomBytes(1)[0] & 3]
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), variant + hex.slice(17, 20), hex.slice(20, 32)].join('-')
}

async function main() {
  await sodium.ready
  const root = await protobuf.load(proto)
  Envelope = root.lookupType('pinch.v1.Envelope')
  Plaintext = root.lookupType('pinch.v1.PlaintextPayload')
  const numbers = root.lookupEnum('pinch.v1.MessageType').values
  Type = Object.fromEntries(Object.entries(numbers).map(([name, value]) => [name.replace('MESSAGE_TYPE_', ''), value]))
  key = sodium.crypto_sign_seed_keypair(Buffer.from(seed, 'hex'))
  boxKey = sodium.crypto_sign_ed25519_sk_to_curve25519(key.privateKey)
  if (fs.existsSync(file)) {
    for (const line of fs.readFileSync(file, 'utf8').split('\n')) if (line) known.add(JSON.parse(line).id)
  }
  tell('ready', { known: known.size })
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const command = JSON.parse(line)
    if (command.do === 'connect') connect(command)
    else if (command.do === 'send') send(command)
    else act(command.do)
  }
  process.exit(0)
}

main()
