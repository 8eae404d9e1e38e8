// A peer on go-libp2p that a test drives: commands come as lines of JSON, and so does what it has to say.
//
// It answers on /test/echo/1 (everything back), /test/ack/1 (a frame behind four bytes of length, acknowledged by
// such a frame) and /test/reset/1 (reset after the first byte). It takes part in gossip.
package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p"
	pubsub "github.com/libp2p/go-libp2p-pubsub"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/discovery/mdns"
	"github.com/libp2p/go-libp2p/p2p/protocol/ping"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
	ma "github.com/multiformats/go-multiaddr"
)

const (
	echoProtocol  = "/test/echo/1"
	ackProtocol   = "/test/ack/1"
	resetProtocol = "/test/reset/1"
	frameMax      = 1 << 20
)

type command struct {
	Do    string `json:"do"`
	Addr  string `json:"addr"`
	Peer  string `json:"peer"`
	Size  int    `json:"size"`
	Count int    `json:"count"`
	At    int    `json:"at"`
	Topic string `json:"topic"`
	Data  string `json:"data"`
}

type event map[string]any

var writing sync.Mutex

func say(what event) {
	writing.Lock()
	defer writing.Unlock()
	line, err := json.Marshal(what)
	if err != nil {
		panic(err)
	}
	os.Stdout.Write(append(line, '\n'))
}

type node struct {
	host   host.Host
	gossip *pubsub.PubSub
	topics map[string]*pubsub.Topic
}

func main() {
	h, err := libp2p.New(
		libp2p.ListenAddrStrings("/ip4/127.0.0.1/tcp/0"),
		libp2p.Transport(tcp.NewTCPTransport),
		libp2p.DisableRelay(),
		libp2p.DisableMetrics(),
	)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	ctx := context.Background()
	gossip, err := pubsub.NewGossipSub(ctx, h)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	n := &node{h, gossip, map[string]*pubsub.Topic{}}
	h.SetStreamHandler(echoProtocol, func(s network.Stream) {
		if _, err := io.Copy(s, s); err != nil {
			s.Reset()
			return
		}
		s.Close()
	})
	h.SetStreamHandler(resetProtocol, func(s network.Stream) {
		s.Read(make([]byte, 1))
		s.Reset()
	})
	h.SetStreamHandler(ackProtocol, func(s network.Stream) {
		body, err := readFrame(s)
		if err == nil {
			err = writeFrame(s, fmt.Appendf(nil, `{"type":"ack","size":%d}`, len(body)))
		}
		if err != nil {
			s.Reset()
			return
		}
		s.Close()
	})
	h.Network().Notify(&network.NotifyBundle{
		ConnectedF: func(_ network.Network, c network.Conn) {
			if len(h.Network().ConnsToPeer(c.RemotePeer())) == 1 {
				say(event{"event": "connected", "peer": c.RemotePeer().String()})
			}
		},
		DisconnectedF: func(net network.Network, c network.Conn) {
			if net.Connectedness(c.RemotePeer()) != network.Connected {
				say(event{"event": "disconnected", "peer": c.RemotePeer().String()})
			}
		},
	})
	var addrs []string
	for _, addr := range h.Addrs() {
		addrs = append(addrs, addr.String()+"/p2p/"+h.ID().String())
	}
	say(event{"event": "ready", "peer": h.ID().String(), "addrs": addrs})
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var c command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		go func() {
			answer, err := n.obey(ctx, c)
			if err != nil {
				say(event{"event": "failed", "do": c.Do, "error": err.Error()})
			} else if answer != nil {
				answer["event"] = c.Do
				say(answer)
			}
		}()
	}
}

func (n *node) obey(ctx context.Context, c command) (event, error) {
	var id peer.ID
	if c.Peer != "" {
		var err error
		if id, err = peer.Decode(c.Peer); err != nil {
			return nil, err
		}
	}
	switch c.Do {
	case "dial":
		addr, err := ma.NewMultiaddr(c.Addr)
		if err != nil {
			return nil, err
		}
		info, err := peer.AddrInfoFromP2pAddr(addr)
		if err != nil {
			return nil, err
		}
		begun := time.Now()
		err = n.host.Connect(ctx, *info)
		return event{"seconds": time.Since(begun).Seconds()}, err
	case "hangup":
		return event{}, n.host.Network().ClosePeer(id)
	case "echo":
		return n.echo(ctx, id, c.Size)
	case "reset":
		s, err := n.host.NewStream(ctx, id, echoProtocol)
		if err != nil {
			return nil, err
		}
		if _, err = s.Write([]byte("x")); err != nil {
			return nil, err
		}
		return event{}, s.Reset()
	case "expect_reset":
		s, err := n.host.NewStream(ctx, id, resetProtocol)
		if err != nil {
			return nil, err
		}
		if _, err = s.Write([]byte("x")); err != nil {
			return nil, err
		}
		_, err = io.ReadAll(s)
		return event{"reset": errors.Is(err, network.ErrReset)}, nil
	case "unknown":
		s, err := n.host.NewStream(ctx, id, "/test/nobody/1")
		if err == nil {
			s.Reset()
		}
		return event{"refused": err != nil}, nil
	case "ping":
		result := <-ping.Ping(ctx, n.host, id)
		return event{"seconds": result.RTT.Seconds()}, result.Error
	case "bench":
		return n.bench(ctx, id, c.Count, c.At, c.Size)
	case "join":
		topic, err := n.gossip.Join(c.Topic)
		if err != nil {
			return nil, err
		}
		n.topics[c.Topic] = topic
		subscription, err := topic.Subscribe()
		if err != nil {
			return nil, err
		}
		go func() {
			for {
				m, err := subscription.Next(ctx)
				if err != nil {
					return
				}
				if m.GetFrom() != n.host.ID() {
					say(event{"event": "message", "topic": c.Topic, "data": string(m.Data), "from": m.GetFrom().String()})
				}
			}
		}()
		return event{}, nil
	case "publish":
		topic, ok := n.topics[c.Topic]
		if !ok {
			return nil, errors.New("not joined")
		}
		return event{}, topic.Publish(ctx, []byte(c.Data))
	case "listeners":
		return event{"count": len(n.gossip.ListPeers(c.Topic))}, nil
	case "mdns":
		return event{}, mdns.NewMdnsService(n.host, c.Topic, found{n}).Start()
	case "protocols":
		known, err := n.host.Peerstore().GetProtocols(id)
		return event{"protocols": known}, err
	}
	return nil, fmt.Errorf("unknown command %q", c.Do)
}

// found dials whoever is announced on the local network.
type found struct{ n *node }

func (f found) HandlePeerFound(info peer.AddrInfo) {
	say(event{"event": "found", "peer": info.ID.String()})
	if err := f.n.host.Connect(context.Background(), info); err != nil {
		say(event{"event": "failed", "do": "mdns", "error": err.Error()})
	}
}

func (n *node) echo(ctx context.Context, id peer.ID, size int) (event, error) {
	body := make([]byte, size)
	rand.Read(body)
	s, err := n.host.NewStream(ctx, id, echoProtocol)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	wrote := make(chan error, 1)
	go func() {
		_, err := s.Write(body)
		if err == nil {
			err = s.CloseWrite()
		}
		wrote <- err
	}()
	back, err := io.ReadAll(s)
	if err != nil {
		return nil, err
	}
	return event{"same": bytes.Equal(back, body), "size": len(back)}, <-wrote
}

// bench sends count messages, a stream each, at of them at once.
func (n *node) bench(ctx context.Context, id peer.ID, count, at, size int) (event, error) {
	body := bytes.Repeat([]byte("x"), size)
	one := func() error {
		s, err := n.host.NewStream(ctx, id, ackProtocol)
		if err != nil {
			return err
		}
		defer s.Close()
		if err = writeFrame(s, body); err != nil {
			return err
		}
		_, err = readFrame(s)
		return err
	}
	if err := one(); err != nil {
		return nil, err
	}
	begun := time.Now()
	failed := make(chan error, at)
	for worker := 0; worker < at; worker++ {
		go func() {
			for i := 0; i < count/at; i++ {
				if err := one(); err != nil {
					failed <- err
					return
				}
			}
			failed <- nil
		}()
	}
	for worker := 0; worker < at; worker++ {
		if err := <-failed; err != nil {
			return nil, err
		}
	}
	return event{"seconds": time.Since(begun).Seconds()}, nil
}

func readFrame(s io.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(s, head[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > frameMax {
		return nil, errors.New("too long")
	}
	body := make([]byte, size)
	_, err := io.ReadFull(s, body)
	return body, err
}

func writeFrame(s io.Writer, body []byte) error {
	_, err := s.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...))
	return err
}
