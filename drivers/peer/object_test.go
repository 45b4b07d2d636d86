package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// threeNodes returns a rig with two servers, a file that they own, b before c, and its content.
func threeNodes(t *testing.T, size int) (r *rig, b, c *memory, name string, data []byte) {
	empty := func() *memory { return newMemory(make(map[string][]byte)) }
	source := empty()
	b, c = empty(), empty()
	b.copies, c.copies = true, true
	r = newRig(t, source, nil, b, c)
	name, data = r.owned(1, 2), content(size)
	put(name, data, source, b, c)
	return r, b, c, name, data
}

// A file is read from its owner, in requests of at most 8 MiB, and not from the source.
func TestReadsFromOwner(t *testing.T) {
	r, _, _, name, data := threeNodes(t, 9<<20+1000)
	r.wantContent(r.open(name), data)
	got := r.stats(0, 1)
	if got.Reads != 2 || got.Bytes != int64(len(data)) {
		t.Errorf("the owner sent %d bytes in %d answers, want %d in 2", got.Bytes, got.Reads, len(data))
	}
	if r.source.opened() != 0 || r.stats(0, 2).Reads != 0 {
		t.Error("the source or the second choice was read, too")
	}
	served := r.nodes[1].Stats()[0]
	if served.ServedReads != 2 || served.ServedBytes != int64(len(data)) || served.Joined != 0 {
		t.Errorf("the owner counts %+v", served)
	}
}

// A piece of a file is read as a file is, by a name with a zero byte.
func TestReadsOfPieces(t *testing.T) {
	r, owner, _, _, _ := threeNodes(t, 1)
	for i := 0; ; i++ {
		unit := fmt.Sprintf("large\x00%d.99", i)
		if r.nodes[0].cfg.Roster.Owners(unit, 1)[0] != 1 {
			continue
		}
		data := content(2<<20 + 5)
		put(unit, data, r.source, owner)
		r.wantContent(r.open(unit), data)
		if r.source.opened() != 0 || owner.opened() == 0 {
			t.Error("the owner was not read")
		}
		return
	}
}

// A file whose name is too long for a request comes from the source, which is not opened before the
// first read.
func TestLongName(t *testing.T) {
	r, _, _, _, _ := threeNodes(t, 1)
	name, data := strings.Repeat("n/", maxName/2)+"n", content(1000)
	put(name, data, r.source)
	o := r.open(name)
	if r.source.opened() != 0 {
		t.Error("the open has opened the source")
	}
	r.wantContent(o, data)
}

// Reads of any range return the right bytes, by several readers at once.
func TestReadsOfAnyRange(t *testing.T) {
	for name, copies := range map[string]bool{"copy": true, "fill": false} {
		t.Run(name, func(t *testing.T) {
			r, b, _, name, data := threeNodes(t, 5<<20+77)
			b.copies = copies
			o := r.open(name)
			var readers sync.WaitGroup
			for seed := range uint64(4) {
				random := rand.New(rand.NewPCG(seed, 0))
				readers.Go(func() {
					for range 40 {
						off, n := random.Int64N(int64(len(data))+10), random.Int64N(3<<20)
						p := make([]byte, n)
						got, err := o.ReadAt(context.Background(), p, off)
						want := data[min(off, int64(len(data))):min(off+n, int64(len(data)))]
						if got != len(want) || !bytes.Equal(p[:got], want) || (err == io.EOF) != (got < len(p)) || err != nil && err != io.EOF {
							t.Errorf("ReadAt of %d at %d: %d, %v, or wrong bytes", n, off, got, err)
						}
					}
				})
			}
			readers.Wait()
			if r.source.opened() != 0 {
				t.Error("the source was read")
			}
		})
	}
}

// Readers of parts of the same block share one request.
func TestReadersShareABlock(t *testing.T) {
	r, b, _, name, data := threeNodes(t, 1<<20)
	b.copies = false
	o := r.open(name)
	var (
		readers sync.WaitGroup
		arrived atomic.Int64
	)
	b.beforeRead(func(context.Context, int64) error { // the other readers wait, or come later
		drivertest.Eventually(t, "all readers", func() bool { return arrived.Load() == 16 })
		return nil
	})
	for i := range 16 {
		readers.Go(func() {
			p := make([]byte, 1000)
			arrived.Add(1)
			off := int64(i) * 50_000
			if n, err := o.ReadAt(context.Background(), p, off); n != len(p) || err != nil || !bytes.Equal(p, data[off:off+1000]) {
				t.Errorf("read %d bytes, %v, or wrong bytes", n, err)
			}
		})
	}
	readers.Wait()
	if got := r.stats(0, 1).Reads; got != 1 {
		t.Errorf("%d requests, want 1", got)
	}
}

// The cache of blocks is bounded, and empty when the files are closed.
func TestCacheIsBounded(t *testing.T) {
	r, _, _, name, _ := threeNodes(t, 8<<20)
	r.nodes[0].cache.max = 3
	info := infoOf(name, r.source.files[name])
	o, _ := r.nodes[0].OpenVersion(context.Background(), name, info, nil)
	for off := int64(0); off < 8; off++ {
		if _, err := o.ReadAt(context.Background(), make([]byte, 10), off<<20); err != nil {
			t.Fatal(err)
		}
	}
	c := &r.nodes[0].cache
	if len(c.blocks) != 3 || c.order.Len() != 3 {
		t.Errorf("%d and %d blocks, want 3", len(c.blocks), c.order.Len())
	}
	o.Close()
	if len(c.blocks) != 0 || c.order.Len() != 0 {
		t.Errorf("%d and %d blocks after Close", len(c.blocks), c.order.Len())
	}
}

// A stream has the bytes of its range, whatever the sizes of the reads, from peers and, when they
// have failed, from the source.
func TestStream(t *testing.T) {
	r, b, c, name, data := threeNodes(t, 11<<20+5)
	for _, places := range []string{"owner", "second choice", "source"} {
		for _, rng := range []span{{0, int64(len(data))}, {3 << 20, 2 << 20}, {1000, 5 << 20}, {int64(len(data)) - 3, 3}, {5, 0}} {
			for _, size := range []int{10 << 20, 1 << 20, 300_000} {
				s, err := r.open(name).(drivers.Streamer).Stream(context.Background(), rng.off, rng.n)
				if err != nil {
					t.Fatal(err)
				}
				var got bytes.Buffer
				if _, err := io.CopyBuffer(struct{ io.Writer }{&got}, struct{ io.Reader }{s}, make([]byte, size)); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(got.Bytes(), data[rng.off:rng.off+rng.n]) {
					t.Errorf("%s, %+v in reads of %d: %d bytes, or wrong bytes", places, rng, size, got.Len())
				}
				s.Close()
			}
		}
		if places == "owner" {
			b.refuse = drivers.ErrFull
		} else {
			c.refuse = fs.ErrNotExist
		}
	}
	if got := r.stats(0, 1).Reads; got == 0 || r.stats(0, 2).Reads == 0 || r.source.opened() == 0 {
		t.Error("not all places were read")
	}
}

// A long stream is one request for each 8 MiB.
func TestStreamRequests(t *testing.T) {
	r, _, _, name, data := threeNodes(t, 12<<20)
	s, _ := r.open(name).(drivers.Streamer).Stream(context.Background(), 0, int64(len(data)))
	defer s.Close()
	p := make([]byte, 1<<20)
	for range 12 {
		if _, err := io.ReadFull(s, p); err != nil {
			t.Fatal(err)
		}
	}
	if got := r.stats(0, 1).Reads; got != 2 {
		t.Errorf("%d requests, want 2", got)
	}
}

// If a node has no room for a file, or lacks it, the next place is read: the owner, the second
// choice, the source. The source is opened once, and a node that lacks the file is not asked
// by each read.
func TestOrderOfPlaces(t *testing.T) {
	r, b, c, name, data := threeNodes(t, 2<<20)
	b.refuse = drivers.ErrFull
	r.wantContent(r.open(name), data)
	if r.stats(0, 1).Misses.Full != 1 || r.stats(0, 2).Reads != 1 || r.source.opened() != 0 {
		t.Errorf("owner %+v, second choice %+v, source opened %d times", r.stats(0, 1), r.stats(0, 2), r.source.opened())
	}
	c.refuse = fs.ErrNotExist
	o := r.open(name)
	for range 3 {
		r.wantContent(o, data)
	}
	if got := r.source.opened(); got != 1 {
		t.Errorf("the source was opened %d times, want 1", got)
	}
	if full, absent := r.stats(0, 1).Misses.Full, r.stats(0, 2).Misses.Absent; full != 2 || absent != 1 {
		t.Errorf("the owner was asked %d times by that Object, the second choice %d times; want 1", full-1, absent)
	}
	if got := r.stats(0, 1).Failovers; got != 0 {
		t.Errorf("%d failovers, want 0", got)
	}
}

// A node that could not read the file, or is not ready, is asked again after a second.
func TestFailureIsForgotten(t *testing.T) {
	r, b, _, name, data := threeNodes(t, 1000)
	b.refuse = errors.New("not ready")
	o := r.open(name).(*object)
	before := time.Now()
	r.wantContent(o, data)
	if got := time.Unix(0, o.owners[0].refused.Load()); got.After(time.Now().Add(failureTTL)) || got.Before(before) {
		t.Errorf("the owner is asked again after %v", got.Sub(before))
	}
	b.refuse = nil
	o.owners[0].refused.Store(time.Now().UnixNano())
	r.wantContent(o, data)
	if got := r.stats(0, 1).Reads; got != 1 {
		t.Errorf("the owner was read %d times, want 1", got)
	}
}

// A node that is an owner itself does not ask itself.
func TestOwnersAskEachOther(t *testing.T) {
	source, b := newMemory(map[string][]byte{}), newMemory(map[string][]byte{})
	r := newRig(t, source, nil, b)
	for _, owners := range [][]int{{0, 1}, {1, 0}} {
		name := r.owned(owners...)
		put(name, content(1000), source, b)
		if got := r.nodes[0].Rank(name); owners[got] != 0 {
			t.Errorf("Rank: got %d for the owners %v", got, owners)
		}
		r.wantContent(r.open(name), content(1000))
	}
	if got := r.stats(0, 1).Reads; got != 2 {
		t.Errorf("%d reads from the other owner, want 2", got)
	}
}

// The errors of the source, and only they, are those of a read. They do not end the Object.
func TestErrorsAreThoseOfTheSource(t *testing.T) {
	r, b, c, name, data := threeNodes(t, 1000)
	b.refuse, c.refuse = drivers.ErrChanged, errors.New("the tier has failed")
	r.source.refuse = errSource
	o := r.open(name)
	if _, err := o.ReadAt(context.Background(), make([]byte, 10), 0); !errors.Is(err, errSource) {
		t.Errorf("got %v, want the error of the source", err)
	}
	if r.stats(0, 1).Misses.Changed != 1 || r.stats(0, 2).Misses.Failed != 1 {
		t.Errorf("misses: %+v and %+v", r.stats(0, 1).Misses, r.stats(0, 2).Misses)
	}
	r.source.refuse = nil
	r.wantContent(o, data)
}

// A read ends when its context is done, and other readers continue.
func TestReadEndsWithContext(t *testing.T) {
	r, b, _, name, data := threeNodes(t, 1<<20)
	b.copies = false
	release, blocked := make(chan struct{}), make(chan struct{}, 10)
	b.beforeRead(func(ctx context.Context, _ int64) error {
		blocked <- struct{}{}
		select {
		case <-release:
		case <-ctx.Done():
			return ctx.Err()
		}
		return nil
	})
	o := r.open(name)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-blocked
		cancel()
	}()
	if _, err := o.ReadAt(ctx, make([]byte, 10), 0); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that the context is done", err)
	}
	close(release)
	r.wantContent(o, data)
	if got := r.stats(0, 1).Failovers; got != 0 {
		t.Errorf("%d failovers because a reader left", got)
	}
}

// A node that is gone costs its readers nothing but the request, in the middle of a file, too. It is
// then skipped, until it answers a ping.
func TestNodeIsGone(t *testing.T) {
	r, b, _, name, data := threeNodes(t, 4<<20)
	b.copies = false // so that there is a request for each block
	var reads atomic.Int64
	b.beforeRead(func(c context.Context, _ int64) error {
		if reads.Add(1) == 3 {
			r.servers[1].server.Close()
			<-c.Done()
		}
		return nil
	})
	o := r.open(name)
	r.wantContent(o, data)
	if got := r.stats(0, 1); got.Bytes != 2<<20 || got.Misses.Broken+got.Misses.Unreachable != 1 || got.Failovers != 1 {
		t.Errorf("counters of the owner: %+v", got)
	}
	if got := r.stats(0, 2).Bytes; got != 2<<20 {
		t.Errorf("%d bytes from the second choice, want %d", got, 2<<20)
	}
	if r.nodes[0].Stats()[1].Up {
		t.Error("the owner counts as up")
	}
	misses := r.stats(0, 1).Misses
	r.wantContent(o, data)
	if got := r.stats(0, 1).Misses; got != misses {
		t.Errorf("the owner was asked again: %+v", got)
	}

	b.beforeRead(nil)
	address := r.nodes[0].peers[1].address
	again, err := r.nodes[1].Listen(address, b)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	drivertest.Eventually(t, "the owner is used again", func() bool {
		r.wantContent(r.open(name), data)
		return r.stats(0, 1).Bytes > 2<<20
	})
}

// A node that does not exist is skipped after the first attempt.
func TestNoConnection(t *testing.T) {
	r, _, _, name, data := threeNodes(t, 1000)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	r.setAddress(1, l.Addr().String())
	for range 3 {
		r.wantContent(r.open(name), data)
	}
	if got := r.stats(0, 1).Misses; got.Unreachable != 1 {
		t.Errorf("misses: %+v", got)
	}
}

// A node that is believed to be dead is not asked, until it answers a ping: the belief may be wrong.
func TestHint(t *testing.T) {
	empty := func() *memory { return newMemory(make(map[string][]byte)) }
	source, b, c := empty(), empty(), empty()
	r := newRig(t, source, func(cfg *Config) { cfg.Up = func(name string) bool { return name != "b" } }, b, c)
	name, data := r.owned(1, 2), content(1000)
	put(name, data, source, b, c)
	r.wantContent(r.open(name), data)
	if r.stats(0, 1).Reads != 0 || r.stats(0, 2).Reads != 1 {
		t.Errorf("%d reads of the node, and %d of the other one; want 0 and 1", r.stats(0, 1).Reads, r.stats(0, 2).Reads)
	}
	drivertest.Eventually(t, "the node is used", func() bool {
		r.wantContent(r.open(name), data)
		return r.stats(0, 1).Reads > 0
	})
}

// The state of a node is what gossip says, before a read needs the node: one that is believed to be
// dead is down, and one that has failed is up again soon after it has joined.
func TestStateFollowsGossip(t *testing.T) {
	var dead atomic.Bool
	r := newRig(t, nil, func(cfg *Config) { cfg.Up = func(string) bool { return !dead.Load() } }, newMemory(nil))
	up := func() bool { return r.nodes[0].Stats()[1].Up }
	if !up() {
		t.Error("the node is down at the beginning")
	}
	dead.Store(true)
	if up() {
		t.Error("the node is up, and gossip says that it is dead")
	}
	dead.Store(false)
	p := r.nodes[0].peers[1]
	p.health.fail(time.Now())
	p.health.until = time.Now().Add(time.Hour)
	if up() {
		t.Error("the node is up after a failure")
	}
	r.nodes[0].Joined("b")
	drivertest.Eventually(t, "the node is up", up)
	r.nodes[0].Joined("unknown")
	r.nodes[0].Joined("a")
}

// When one of the other nodes answers again after all of them were skipped, the rest are pinged at
// once, and not after their pauses: it was this node that was cut off.
func TestNodeWasCutOff(t *testing.T) {
	empty := func() *memory { return newMemory(make(map[string][]byte)) }
	r := newRig(t, empty(), nil, empty(), empty(), empty())
	now := time.Now()
	for i, p := range r.nodes[0].peers[1:] {
		p.health.fail(now)
		if i > 0 {
			p.health.until = now.Add(time.Hour)
		}
	}
	for _, p := range r.nodes[0].peers[2:] {
		if p.usable() {
			t.Fatalf("%s is used", p.name)
		}
	}
	drivertest.Eventually(t, "all nodes are used", func() bool {
		r.nodes[0].peers[1].usable()
		return r.nodes[0].peers[2].isUp() && r.nodes[0].peers[3].isUp()
	})

	r.nodes[0].peers[1].health.fail(now.Add(-time.Minute))
	r.nodes[0].peers[2].health.fail(now)
	r.nodes[0].peers[2].health.until = now.Add(time.Hour)
	drivertest.Eventually(t, "the first node is used again", r.nodes[0].peers[1].usable)
	if p := r.nodes[0].peers[2]; p.usable() {
		t.Errorf("%s is used before the end of its pause, while another node was used all the time", p.name)
	}
}
