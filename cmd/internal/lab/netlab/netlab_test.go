package netlab

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// newNetwork makes a network for a test.
func newNetwork(t testing.TB, n int, rate int64) *Network {
	t.Helper()
	drivertest.Need(t, "root", "ip", "tc")
	network, err := New(n, rate)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := network.Close(); err != nil {
			t.Error(err)
		}
	})
	return network
}

// arrival returns how long to wait for packets. Those that should arrive may take long on a busy
// machine, and a lost one is sent again after a second.
func arrival(want bool) time.Duration {
	if want {
		return 30 * time.Second
	}
	return time.Second
}

// listen listens on a TCP port of a node, and sends the bytes that f writes to each client.
func listen(t testing.TB, n *Node, f func(w io.Writer) error) (address string) {
	t.Helper()
	var l net.Listener
	err := n.Do(func() (err error) {
		l, err = net.Listen("tcp", n.Address+":0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				f(c)
			}()
		}
	}()
	return l.Addr().String()
}

// dial connects a node to an address within a time, and returns all bytes that it gets from there.
func dial(n *Node, address string, within time.Duration) (data []byte, err error) {
	err = n.Do(func() error {
		c, err := net.DialTimeout("tcp", address, within)
		if err != nil {
			return err
		}
		defer c.Close()
		data, err = io.ReadAll(c)
		return err
	})
	return data, err
}

func greet(w io.Writer) error { _, err := io.WriteString(w, "hello"); return err }

// wantReach checks whether node from reaches an address.
func wantReach(t *testing.T, from *Node, address string, want bool) {
	t.Helper()
	got, err := dial(from, address, arrival(want))
	if reached := err == nil && string(got) == "hello"; reached != want {
		t.Errorf("%s reaches %s: %v, want %v: %v", from.Name, address, reached, want, err)
	}
}

// Nodes reach each other until a link is cut or the network is partitioned, and after that again.
// They do not reach other networks, and processes of a node have its host name.
func TestLinks(t *testing.T) {
	net := newNetwork(t, 3, 100<<20)
	one, two, three := net.Nodes[0], net.Nodes[1], net.Nodes[2]
	address := listen(t, one, greet)
	wantReach(t, one, address, true)
	wantReach(t, two, address, true)

	if err := two.Unplug(); err != nil {
		t.Fatal(err)
	}
	wantReach(t, two, address, false)
	wantReach(t, three, address, true)
	if err := two.Plug(); err != nil {
		t.Fatal(err)
	}
	wantReach(t, two, address, true)
	if err := net.Partition(one, three); err != nil {
		t.Fatal(err)
	}
	wantReach(t, two, address, false)
	wantReach(t, three, address, true)
	if err := net.Heal(); err != nil {
		t.Fatal(err)
	}
	wantReach(t, two, address, true)

	other := newNetwork(t, 2, 0)
	wantReach(t, other.Nodes[1], address, false)
	err := two.Do(func() error {
		out, err := exec.Command("uname", "-n").Output()
		if err == nil && strings.TrimSpace(string(out)) != two.Name {
			err = fmt.Errorf("the host name is %s", out)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// DropUDP drops the UDP packets to a node, and no others.
func TestDropUDP(t *testing.T) {
	network := newNetwork(t, 2, 0)
	one, two := network.Nodes[0], network.Nodes[1]
	address := listen(t, one, greet)
	var server net.PacketConn
	err := one.Do(func() (err error) {
		server, err = net.ListenPacket("udp", one.Address+":0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	wantArrival := func(want bool) {
		t.Helper()
		err := two.Do(func() error {
			c, err := net.Dial("udp", server.LocalAddr().String())
			if err != nil {
				return err
			}
			defer c.Close()
			return greet(c)
		})
		if err != nil {
			t.Error(err)
		}
		server.SetReadDeadline(time.Now().Add(arrival(want)))
		_, _, err = server.ReadFrom(make([]byte, 100))
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
		if arrived := err == nil; arrived != want {
			t.Errorf("a packet has arrived: %v, want %v", arrived, want)
		}
	}
	wantArrival(true)
	if err := one.DropUDP(); err != nil {
		t.Fatal(err)
	}
	wantArrival(false)
	wantReach(t, two, address, true)
}

// send returns a function that writes n bytes.
func send(n int64) func(io.Writer) error {
	return func(w io.Writer) error {
		p := make([]byte, 1<<20)
		for left := n; left > 0; left -= int64(len(p)) {
			if _, err := w.Write(p[:min(left, int64(len(p)))]); err != nil {
				return err
			}
		}
		return nil
	}
}

// The traffic of a node is what it sends and receives.
func TestTraffic(t *testing.T) {
	network := newNetwork(t, 2, 0)
	one, two := network.Nodes[0], network.Nodes[1]
	const size = 8 << 20
	if data, err := dial(two, listen(t, one, send(size)), arrival(true)); err != nil || len(data) != size {
		t.Fatalf("%d bytes, %v", len(data), err)
	}
	_, sent, err := one.Traffic()
	if err != nil {
		t.Fatal(err)
	}
	received, _, err := two.Traffic()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int64{sent, received} {
		if n < size || n > size*11/10 {
			t.Errorf("%d bytes were sent, %d received; want %d and some headers", sent, received, size)
		}
	}
}

// BenchmarkLink shows the rate of a link of 400 MB/s.
func BenchmarkLink(b *testing.B) {
	const rate, size = 400_000_000, 200_000_000
	network := newNetwork(b, 2, rate)
	address := listen(b, network.Nodes[0], send(size))
	b.SetBytes(size)
	for b.Loop() {
		if data, err := dial(network.Nodes[1], address, arrival(true)); err != nil || len(data) != size {
			b.Fatalf("%d bytes, %v", len(data), err)
		}
	}
}
