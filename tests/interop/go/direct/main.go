// A trader on go-libp2p that a test drives: commands come as lines of JSON, and so does what it has to say.
//
// It takes direct messages (a frame behind four bytes of length) and answers them as it is told: yes, no, wrong (an
// acknowledgement of another message), garbage, reset, silent, or quiet (yes, and nothing is said of it).
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
	ma "github.com/multiformats/go-multiaddr"
)

const (
	protocol = "/klingon/swap/direct/1.0.0"
	frameMax = 1 << 20
)

type command struct {
	Do   string `json:"do"`
	Addr string `json:"addr"`
	Peer string `json:"peer"`
	Data string `json:"data"`
	Mode string `json:"mode"`

	Payload json.RawMessage `json:"payload"`

	Count int `json:"count"`
	At    int `json:"at"`
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

var mode atomic.Value

func main() {
	mode.Store("yes")
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
	h.SetStreamHandler(protocol, func(s network.Stream) { serve(h, s) })
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
	lines.Buffer(nil, 4*frameMax)
	for lines.Scan() {
		var c command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		go func() {
			answer, err := obey(context.Background(), h, c)
			if err != nil {
				say(event{"event": "failed", "do": c.Do, "error": err.Error()})
				return
			}
			answer["event"] = c.Do
			say(answer)
		}()
	}
}

// serve reads one frame and answers it.
func serve(h host.Host, s network.Stream) {
	body, err := readFrame(s)
	if err != nil {
		s.Reset()
		return
	}
	var message map[string]any
	if err := json.Unmarshal(body, &message); err != nil {
		s.Reset()
		return
	}
	how := mode.Load().(string)
	if how != "quiet" {
		say(event{"event": "frame", "size": len(body), "id": message["message_id"], "type": message["type"],
			"number": message["sequence_num"], "mode": how})
	}
	id := message["message_id"]
	switch how {
	case "reset":
		s.Reset()
		return
	case "silent":
		time.Sleep(time.Minute)
		s.Reset()
		return
	case "garbage":
		s.Write([]byte{0, 0, 0, 2, '{', ']'})
		s.Close()
		return
	case "wrong":
		id = "another"
	}
	payload := event{"message_id": id, "sequence_num": message["sequence_num"], "success": how != "no"}
	if how == "no" {
		payload["error"] = "as it was told"
	}
	ack, _ := json.Marshal(event{"type": "ack", "trade_id": message["trade_id"], "order_id": "", "message_id": "ack",
		"from_peer": h.ID().String(), "payload": payload, "timestamp": time.Now().Unix()})
	writeFrame(s, ack)
	s.Close()
}

func obey(ctx context.Context, h host.Host, c command) (event, error) {
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
		return event{}, h.Connect(ctx, *info)
	case "hangup":
		return event{}, h.Network().ClosePeer(id)
	case "mode":
		mode.Store(c.Mode)
		return event{}, nil
	case "bench":
		return bench(ctx, h, id, c.Data, c.Payload, c.Count, c.At)
	case "send":
		s, err := h.NewStream(ctx, id, protocol)
		if err != nil {
			return nil, err
		}
		defer s.Close()
		if err := writeFrame(s, []byte(c.Data)); err != nil {
			return nil, err
		}
		body, err := readFrame(s)
		return event{"answer": string(body)}, err
	}
	return nil, fmt.Errorf("unknown command %q", c.Do)
}

// bench sends count messages, a stream each, at of them at once, each of those in a trade of its own.
func bench(ctx context.Context, h host.Host, id peer.ID, run string, payload json.RawMessage, count, at int) (event, error) {
	one := func(trade string, number int) error {
		s, err := h.NewStream(ctx, id, protocol)
		if err != nil {
			return err
		}
		defer s.Close()
		body, _ := json.Marshal(event{"type": "nonce_exchange", "trade_id": trade, "order_id": "",
			"from_peer": h.ID().String(), "payload": payload,
			"timestamp": time.Now().Unix(), "message_id": fmt.Sprintf("%s-%d", trade, number),
			"sequence_num": number, "requires_ack": true, "swap_timeout": time.Now().Unix() + 86400})
		if err = writeFrame(s, body); err != nil {
			return err
		}
		answer, err := readFrame(s)
		if err != nil {
			return err
		}
		var ack struct {
			Payload struct {
				Success bool   `json:"success"`
				Error   string `json:"error"`
			} `json:"payload"`
		}
		if err = json.Unmarshal(answer, &ack); err == nil && !ack.Payload.Success {
			err = errors.New(ack.Payload.Error)
		}
		return err
	}
	begun := time.Now()
	ended := make(chan error, at)
	for worker := 0; worker < at; worker++ {
		go func() {
			for number := 1; number <= count/at; number++ {
				if err := one(fmt.Sprintf("%s-%d", run, worker), number); err != nil {
					ended <- err
					return
				}
			}
			ended <- nil
		}()
	}
	for worker := 0; worker < at; worker++ {
		if err := <-ended; err != nil {
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
