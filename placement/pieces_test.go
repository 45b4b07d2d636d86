package placement

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/drivers/posix"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

// testPiece is the size of pieces in tests, unless it matters that pieces have several blocks.
const testPiece = blockSize

// divided returns the options of n nodes that divide files above testPiece.
func divided(n int, quota int64) []rigOptions {
	return slices.Repeat([]rigOptions{{quotas: []int64{quota}, pieceSize: testPiece}}, n)
}

// pieces returns the pieces of a file on a node.
func (n *node) pieces(name string) []*metadata.Entry {
	n.t.Helper()
	all, err := n.names.Pieces(context.Background(), n.entry(name))
	n.check(err)
	return all
}

// pieceOwners returns the owners of the pieces of a file.
func (c *cluster) pieceOwners(name string) (owners []int) {
	for _, p := range c.nodes[0].pieces(name) {
		owners = append(owners, c.choices(p.Unit())[0])
	}
	return owners
}

// copies returns the names of the copies that the node has, without the directories.
func (n *node) copies() (names []string) {
	n.t.Helper()
	n.check(n.levels.Tiers()[0].Copies(context.Background(), ".", func(copies []tiers.CopyInfo) error {
		for _, c := range copies {
			names = append(names, string(c.Name))
		}
		return nil
	}))
	return names
}

// used returns the bytes that copies take on a node, with those in flight.
func (n *node) used() (bytes int64) {
	for _, t := range n.levels.Tiers() {
		_, taken := t.Room()
		bytes += taken
	}
	return bytes
}

// wantRoom waits until the only copies that take room on a node are those of the pieces of a file.
// Until they are closed, copies that were removed take their room, too.
func (n *node) wantRoom(name string) {
	n.t.Helper()
	n.eventually("the room of removed copies has returned", func() bool {
		var want int64
		for _, p := range n.pieces(name) {
			if p.Level() != tiers.AtSource {
				want += tiers.Allocated(p.Size())
			}
		}
		return n.used() == want
	})
}

// Large files are owned in pieces: all nodes read all files at once, and the owner of a piece reads it
// from the source once.
func TestPiecesAreReadOnce(t *testing.T) {
	for _, size := range []int{4 * testPiece, 3*testPiece + 1, 3*testPiece - 1, testPiece + 1} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, divided(4, 1<<30)...)
			c.put(2, func(i int) int { return size })
			for _, node := range c.nodes {
				node.from.Add(drivertest.Rule{Op: drivertest.OpRead, Delay: time.Millisecond})
			}
			c.epoch(1)
			c.settle()
			if got, want := c.sourceBytes(), c.bytes(); got != want {
				t.Errorf("the source served %d bytes, want %d", got, want)
			}
			for name, data := range c.files {
				for i, owner := range c.pieceOwners(name) {
					n := c.nodes[owner]
					p := n.pieces(name)[i]
					if p.Level() == tiers.AtSource {
						t.Errorf("the owner of piece %d of %s has no copy", i, name)
					}
					if want := min(testPiece, int64(len(data))-p.Offset()); p.Size() != want {
						t.Errorf("piece %d has %d bytes, want %d", i, p.Size(), want)
					}
				}
			}
		})
	}
}

// The pieces of one file are spread over the nodes.
func TestPiecesAreSpread(t *testing.T) {
	c := newCluster(t, divided(4, 1<<30)...)
	data := random(1, 16*testPiece)
	c.files["large"] = data
	c.mem.Put("large", data)
	c.epoch(1)
	c.settle()
	for i, n := range c.nodes {
		if got := n.levels.Source().Stats().Bytes; got == 0 || got > int64(len(data))/2 {
			t.Errorf("node %d has read %d of %d bytes from the source", i, got, len(data))
		}
		if n.served.Load() == 0 {
			t.Errorf("node %d has served nothing", i)
		}
	}
}

// A file that is read in pieces reads as the source does at every boundary, and past its end.
func TestReadsAcrossPieces(t *testing.T) {
	const piece, size = 2 * blockSize, 3*2*blockSize + 12_345
	opts := divided(3, 1<<30)
	for i := range opts {
		opts[i].pieceSize = piece
	}
	c := newCluster(t, opts...)
	data := random(1, size)
	c.mem.Put("large", data)
	for _, n := range c.nodes {
		obj := n.open("large")
		for at := piece; at <= size; at += piece {
			for _, off := range []int{at - 1, at, at + 1, at - 70_000} {
				for _, length := range []int{1, 2, 128 << 10, piece + 2} {
					n.wantAt(obj, off, min(length, size-off), data)
				}
			}
		}
		n.wantAt(obj, 0, size, data)
		p := make([]byte, 100)
		for {
			m, err := obj.ReadAt(t.Context(), p, size-10)
			if errors.Is(err, drivers.ErrRetry) {
				continue
			}
			if m != 10 || err != io.EOF || !bytes.Equal(p[:10], data[size-10:]) {
				t.Errorf("a read across the end: got %d, %v", m, err)
			}
			break
		}
		if m, err := obj.ReadAt(t.Context(), p, size); m != 0 || err != io.EOF {
			t.Errorf("a read at the end: got %d, %v", m, err)
		}
		if _, ok := drivers.As[drivers.Splicer](obj); ok {
			if _, _, err := obj.(drivers.Splicer).SpliceDescriptor(); !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("a splice descriptor: got %v", err)
			}
		}
		if _, err := obj.(drivers.BackingFiler).BackingFile(func(uintptr) error { return nil }); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("a backing file: got %v", err)
		}
		obj.Close()
		e := n.entry("large")
		got := make([]byte, 300_000)
		for {
			_, err := n.handler.ReadAt(t.Context(), e, got, piece-100_000)
			if errors.Is(err, drivers.ErrRetry) {
				continue
			}
			n.check(err)
			break
		}
		if !bytes.Equal(got, data[piece-100_000:][:len(got)]) {
			t.Error("a read without an open: wrong bytes")
		}
	}
}

// A file of at most one piece is owned, and copied, as a whole.
func TestSmallFilesHaveNoPieces(t *testing.T) {
	c := newCluster(t, divided(2, 1<<30)...)
	c.mem.Put("small", random(1, testPiece))
	n := c.nodes[0]
	if all := n.pieces("small"); all != nil {
		t.Errorf("got %d pieces", len(all))
	}
}

// A node that was started again has the copies of its pieces.
func TestPiecesSurviveRestart(t *testing.T) {
	c := newCluster(t, divided(3, 1<<30)...)
	c.put(4, func(i int) int { return 3*testPiece + i*1000 })
	c.epoch(1)
	c.settle()
	before := c.sourceBytes()
	if before != c.bytes() {
		t.Fatalf("the source served %d bytes, want %d", before, c.bytes())
	}
	for _, n := range c.nodes {
		used := n.used()
		lost := n.levels.Source().Stats().Bytes
		n.kill()
		n.end()
		n.start()
		before -= lost
		if got := n.used(); got != used || used == 0 {
			t.Errorf("node %d: %d bytes are taken after the restart, want %d", n.index, got, used)
		}
	}
	c.epoch(2)
	c.settle()
	if got := c.sourceBytes(); got != before || before != 0 {
		t.Errorf("after the restart, the source served %d bytes", got)
	}
}

// The copies of pieces of earlier versions are never served, and give their room back, whether or not
// the size of the file has changed.
func TestPiecesFollowChanges(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		what    string
		size    int
		restart bool
	}{
		{"the same size", 4 * testPiece, false},
		{"longer", 4*testPiece + 5, false},
		{"shorter", 2*testPiece + 5, false},
		{"the same size, while the nodes are down", 4 * testPiece, true},
		{"shorter, while the nodes are down", 3 * testPiece, true},
	} {
		t.Run(tt.what, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, divided(3, 1<<30)...)
			put := func(seed uint64, size int) {
				c.files["large"] = random(seed, size)
				c.mem.Put("large", c.files["large"])
			}
			put(1, 4*testPiece)
			c.epoch(1)
			c.settle()
			if tt.restart {
				for _, n := range c.nodes {
					n.kill()
					n.end()
				}
			}
			put(2, tt.size)
			for _, n := range c.nodes {
				if tt.restart {
					n.start()
				} else {
					n.names.Changed(n.entry("large"))
				}
			}
			before := c.sourceBytes()
			c.epoch(2)
			c.settle()
			if got := c.sourceBytes() - before; got != int64(tt.size) {
				t.Errorf("the source served %d bytes of the new version, want %d", got, tt.size)
			}
			for _, n := range c.nodes {
				n.wantRoom("large")
				if got := int64(len(n.copies())); got != n.levels.Tiers()[0].Stats().Files {
					t.Errorf("node %d has %d copies: %q", n.index, got, n.copies())
				}
			}
		})
	}
}

// A copy of a piece that is corrupt is removed and made again, and the reader gets right bytes.
func TestCorruptPiece(t *testing.T) {
	c := newCluster(t, divided(2, 1<<30)...)
	c.files["large"] = random(1, 4*testPiece)
	c.mem.Put("large", c.files["large"])
	c.epoch(1)
	c.settle()
	n := c.nodes[0]
	i := slices.IndexFunc(n.pieces("large"), func(p *metadata.Entry) bool { return p.Level() != tiers.AtSource })
	if i < 0 {
		t.Fatal("the node has no piece")
	}
	p := n.pieces("large")[i]
	n.to[0].Add(drivertest.Rule{Op: drivertest.OpRead, Match: func(name string) bool { return name == p.CopyName() }, Times: 1, Err: drivers.ErrCorrupt})
	n.wantFile("large", c.files["large"])
	if got := n.levels.Tiers()[0].Stats().Corrupt; got != 1 {
		t.Errorf("%d corrupt copies were found, want 1", got)
	}
	n.eventually("the corrupt copy is removed and made again", func() bool {
		n.wantFile("large", c.files["large"])
		return p.Level() != tiers.AtSource && !n.handler.bad.has(p, p.Level())
	})
	n.settled()
	n.wantRoom("large")
}

// The owner of a piece is down: the second choice places it, once for all.
func TestPieceWithoutItsOwner(t *testing.T) {
	c := newCluster(t, divided(4, 1<<30)...)
	data := random(1, 8*testPiece)
	c.files["large"] = data
	c.mem.Put("large", data)
	lost := c.nodes[c.pieceOwners("large")[0]]
	lost.kill()
	c.epoch(1)
	c.settle()
	if got := c.sourceBytes(); got != int64(len(data)) {
		t.Errorf("the source served %d bytes, want %d", got, len(data))
	}
}

// withWholeCopy returns a cluster that divides files, and a node that has a copy of a large file as a
// whole, which a mount without peers has left.
func withWholeCopy(t *testing.T) (c *cluster, owner *node, data []byte) {
	t.Helper()
	opts := divided(3, 1<<30)
	for i := range opts {
		opts[i].pieceSize = 0
	}
	c = newCluster(t, opts...)
	data = random(1, 4*testPiece+99)
	c.files["large"] = data
	c.mem.Put("large", data)
	owner = c.nodes[c.choices("large")[0]]
	owner.wantFile("large", data)
	c.settle()
	if owner.entry("large").Level() == tiers.AtSource {
		t.Fatal("there is no copy")
	}
	for _, n := range c.nodes {
		n.kill()
		n.end()
		n.opts.pieceSize = testPiece
		n.start()
	}
	return c, owner, data
}

// A copy of a whole file, which a mount without peers has left, is read and served instead of pieces.
func TestWholeCopyServesPieces(t *testing.T) {
	c, owner, data := withWholeCopy(t)
	for i, p := range owner.pieces("large") {
		obj, err := owner.handler.OpenShared(t.Context(), p.Unit(), p.Info(), c.nodes[owner.index].handler.rank(p))
		owner.check(err)
		owner.wantAt(obj, 0, int(p.Size()), data[i*testPiece:])
		if _, err := obj.(drivers.BackingFiler).BackingFile(func(uintptr) error { return nil }); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("a piece of a whole copy has a backing file, of which the offsets differ: %v", err)
		}
		obj.Close()
	}
	owner.wantFile("large", data)
	if got := owner.levels.Source().Stats().Bytes; got != 0 {
		t.Errorf("the source served %d bytes", got)
	}
	owner.to[0].Add(drivertest.Rule{Op: drivertest.OpRead, Name: "large", Times: 1, Err: drivers.ErrCorrupt})
	owner.wantFile("large", data)
	if got := owner.levels.Tiers()[0].Stats().Corrupt; got != 1 {
		t.Errorf("%d corrupt copies were found, want 1", got)
	}
}

// Of a file that has copies of pieces and one of the whole file, the pieces are dropped.
func TestWholeCopyReplacesPieces(t *testing.T) {
	c := newCluster(t, divided(2, 1<<30)...)
	data := random(1, 4*testPiece+99)
	c.files["large"] = data
	c.mem.Put("large", data)
	c.epoch(1)
	c.settle()
	n := c.nodes[c.choices("large")[0]]
	restart := func(pieceSize int64) {
		for _, n := range c.nodes {
			n.kill()
			n.end()
			n.opts.pieceSize = pieceSize
			n.start()
		}
	}
	restart(0)
	n.wantFile("large", data)
	c.settle()
	if got := n.copies(); !slices.Contains(got, "large") || len(got) < 2 {
		t.Fatalf("got the copies %q, want some of pieces and one of the file", got)
	}
	restart(testPiece)
	n.wantFile("large", data)
	n.eventually("the pieces are dropped", func() bool {
		return slices.Equal(n.copies(), []string{"large"}) && n.used() == tiers.Allocated(int64(len(data)))
	})
	n.wantFile("large", data)
	if got := n.levels.Source().Stats().Bytes; got != 0 {
		t.Errorf("the source served %d bytes", got)
	}
}

// A file that ends before its size reads with peers as TestShortFile says, on all nodes, in pieces or
// not, and also if it ends between two pieces.
func TestShortFileInPieces(t *testing.T) {
	for _, tt := range []struct {
		pieceSize int64
		end       int
	}{
		{testPiece, 2 * testPiece}, {testPiece, 2*testPiece - 1}, {testPiece, 2*testPiece + 1}, {0, 2*testPiece + 1},
	} {
		t.Run(fmt.Sprint(tt), func(t *testing.T) {
			t.Parallel()
			opts := divided(2, 1<<30)
			for i := range opts {
				opts[i].pieceSize = tt.pieceSize
			}
			c := newCluster(t, opts...)
			data := random(1, 5*testPiece)
			c.mem.Put("large", data)
			for _, n := range c.nodes {
				n.from.Add(drivertest.Rule{Op: drivertest.OpRead, End: int64(tt.end)})
			}
			for _, n := range c.nodes {
				obj := n.open("large")
				wantShort(t, obj, data, tt.end)
				obj.Close()
			}
		})
	}
}

// wantShort checks reads of obj, which ends before its size.
func wantShort(t *testing.T, obj drivers.Object, data []byte, end int) {
	t.Helper()
	read := func(length, off int) ([]byte, error) {
		p := make([]byte, length)
		for {
			n, err := obj.ReadAt(t.Context(), p, int64(off))
			if !errors.Is(err, drivers.ErrRetry) {
				return p[:n], err
			}
		}
	}
	if got, err := read(testPiece, end-100); err != io.EOF || !bytes.Equal(got, data[end-100:end]) {
		t.Errorf("across the end: got %d bytes and %v", len(got), err)
	}
	if got, err := read(100, end); err != io.EOF || len(got) != 0 {
		t.Errorf("at the end: got %d bytes and %v", len(got), err)
	}
	for _, off := range []int{end + 10, 3 * testPiece, 4 * testPiece} {
		if got, err := read(100, off); !errors.Is(err, drivers.ErrShort) || len(got) != 0 {
			t.Errorf("at %d, after the end: got %d bytes and %v", off, len(got), err)
		}
	}
}

// While a copy of a whole file cannot be read, the file is read in its pieces, which other nodes serve.
func TestWholeCopyThatFails(t *testing.T) {
	for _, op := range []drivertest.Op{drivertest.OpOpen, drivertest.OpRead} {
		t.Run(string(op), func(t *testing.T) {
			c, owner, data := withWholeCopy(t)
			owner.handler.bad.ttl = time.Hour // when it is over, one read finds out that the copy still fails
			owner.to[0].Add(drivertest.Rule{Op: op, Name: "large", Err: syscall.EIO})
			for _, n := range append([]*node{owner}, c.nodes...) {
				n.wantFile("large", data)
			}
			if got := owner.levels.Source().Stats().Bytes; got != 0 {
				t.Errorf("the node has read %d bytes from the source", got)
			}
			if got := c.sourceBytes(); got != int64(len(data)) {
				t.Errorf("the source served %d bytes, want %d", got, len(data))
			}
		})
	}
}

// A source may have names like those of the copies of pieces. Such files are not copied, and are read
// right.
func TestSourceNamesLikePieces(t *testing.T) {
	c := newCluster(t, divided(2, 1<<30)...)
	large := random(1, 3*testPiece)
	c.mem.Put("large", large)
	for _, n := range c.nodes {
		n.wantFile("large", large)
	}
	c.settle()
	info, err := c.mem.Stat(t.Context(), "large")
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range c.nodes[0].pieces("large") {
		name := p.CopyName()
		if !strings.HasPrefix(name, ".milkweed-pieces/large/") {
			t.Errorf("the copy of piece %d has the name %s", i, name)
		}
		other := random(uint64(100+i), testPiece)
		c.mem.PutAt(name, other, info.Mtime)
		for _, n := range c.nodes {
			n.wantFile(name, other)
			if n.entry(name).Level() != tiers.AtSource {
				t.Errorf("%s has a copy", name)
			}
		}
	}
	for _, n := range c.nodes {
		n.settled()
		n.wantFile("large", large)
	}
}

// A node refuses what is not a piece of the version that it knows.
func TestOpenSharedRefusesPieces(t *testing.T) {
	c := newCluster(t, divided(2, 1<<30)...)
	c.mem.Put("large", random(1, 3*testPiece))
	n := c.nodes[0]
	p := n.pieces("large")[1]
	for _, tt := range []struct {
		unit string
		info drivers.Info
		want error
	}{
		{"large", n.entry("large").Info(), drivers.ErrChanged},
		{"large\x001.7", p.Info(), drivers.ErrChanged},
		{"large\x00-1." + fmt.Sprint(3*testPiece), p.Info(), drivers.ErrChanged},
		{"large\x003." + fmt.Sprint(3*testPiece), p.Info(), drivers.ErrChanged},
		{"large\x001." + fmt.Sprint(3*testPiece) + "\x00", p.Info(), drivers.ErrChanged},
		{p.Unit(), n.pieces("large")[0].Info(), nil},
		{"../large\x001.6", p.Info(), fs.ErrNotExist},
		{"\x001.6", p.Info(), fs.ErrNotExist},
	} {
		obj, err := n.handler.OpenShared(t.Context(), tt.unit, tt.info, n.handler.rank(p))
		if err == nil {
			obj.Close()
		}
		if !errors.Is(err, tt.want) {
			t.Errorf("%q: got %v, want %v", tt.unit, err, tt.want)
		}
	}
}

// Warmup places the pieces that a node owns, and counts files as the user does.
func TestWarmupOfPieces(t *testing.T) {
	c := newCluster(t, divided(3, 1<<30)...)
	c.put(3, func(i int) int { return 4*testPiece + i })
	for _, n := range c.nodes {
		var last Progress
		n.check(n.handler.Warmup(context.Background(), []*metadata.Entry{n.names.Root()},
			func(p Progress) { last = p }, func(e *metadata.Entry, err error) { t.Errorf("%s: %v", e.Path(), err) }))
		if want := (Amount{3, c.bytes()}); last.Found != want || last.Placed != want {
			t.Errorf("node %d: found %v, placed %v, want %v", n.index, last.Found, last.Placed, want)
		}
	}
	c.settle()
	if got := c.sourceBytes(); got != c.bytes() {
		t.Errorf("the source served %d bytes, want %d", got, c.bytes())
	}
}

// A scrub finds a corrupt copy of a piece, and makes it again.
func TestScrubOfPieces(t *testing.T) {
	opts := divided(2, 1<<30)
	tier := t.TempDir()
	store, err := posix.OpenStore(posix.StoreConfig{Tier: tier, Dataset: "data", Source: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	opts[0].onDisk = []drivers.Store{store}
	c := newCluster(t, opts...)
	c.files["d/large"] = random(1, 4*testPiece)
	c.mem.Put("d/large", c.files["d/large"])
	c.epoch(1)
	c.settle()
	n := c.nodes[0]
	var placed []*metadata.Entry
	for _, p := range n.pieces("d/large") {
		if p.Level() != tiers.AtSource {
			placed = append(placed, p)
		}
	}
	disk := &disk{n.rig, []string{tier + "/data/files"}}
	disk.flip(1, placed[0].CopyName(), 500_000)
	for _, path := range []string{"d/large", "."} {
		var last ScrubReport
		n.check(n.handler.Scrub(context.Background(), ScrubOptions{Path: path}, func(r ScrubReport) { last = r }))
		want := int64(0)
		if path == "d/large" {
			want = 1
		}
		if last.CopiesFound != int64(len(placed)) || last.CopiesCorrupt != want || last.Refetched != want {
			t.Errorf("scrub of %s: %d found, %d corrupt, %d refetched; want %d, %d, %d",
				path, last.CopiesFound, last.CopiesCorrupt, last.Refetched, len(placed), want, want)
		}
	}
}

// The room of pieces returns when the copies of a file are dropped.
func TestRoomOfPiecesReturns(t *testing.T) {
	t.Parallel()
	c := newCluster(t, divided(2, 1<<30)...)
	c.files["large"] = random(1, 5*testPiece)
	c.mem.Put("large", c.files["large"])
	c.epoch(1)
	c.settle()
	for _, n := range c.nodes {
		n.awaits("the room of all copies", func() bool {
			for _, p := range n.pieces("large") { // on a busy machine, a node may read a piece for another one late
				_, err := n.handler.Retract(p)
				n.check(err)
			}
			return n.used() == 0
		}, func() string { return fmt.Sprintf("node %d uses %d bytes: %+v", n.index, n.used(), n.handler.Stats()) })
	}
	c.epoch(2)
}

// Large files that fit into the tiers of each node are on all of them in the end.
func TestPiecesBecomeLocal(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T) {
		c := newCluster(t, divided(3, 32*testPiece)...)
		c.put(3, func(i int) int { return 4*testPiece + i })
		for epoch := range uint64(3) {
			c.epoch(epoch)
			time.Sleep(10 * time.Second)
		}
		before := c.servedBytes()
		c.epoch(4)
		if got := c.servedBytes() - before; got != 0 {
			t.Errorf("epoch 4: %d bytes between nodes", got)
		}
		if got, want := c.sourceBytes(), c.bytes(); got != want {
			t.Errorf("the source served %d bytes, want %d", got, want)
		}
	})
}

// A dataset of one large file that fits on no node is on all of them together.
func TestPiecesTogetherHoldTheFile(t *testing.T) {
	t.Parallel()
	c := newCluster(t, divided(4, 8*testPiece)...)
	data := random(1, 14*testPiece)
	c.files["large"] = data
	c.mem.Put("large", data)
	c.epoch(1)
	c.settle()
	before := c.sourceBytes()
	if before != int64(len(data)) {
		t.Errorf("epoch 1: the source served %d bytes, want %d", before, len(data))
	}
	c.epoch(2)
	if got := c.sourceBytes() - before; got != 0 {
		t.Errorf("epoch 2: the source served %d bytes", got)
	}
}

// A file that is open, and read in pieces of which some have no copy, keeps its version when another file
// gets its name.
func TestReplacedWhileOpenInPieces(t *testing.T) {
	for name, quota := range map[string]int64{"room for all": 1 << 30, "no room": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, divided(2, quota)...)
			old := random(1, 8*testPiece)
			c.files["large"] = old
			c.mem.Put("large", old)
			var handles []drivers.Object
			for _, n := range c.nodes {
				o, err := n.handler.Open(context.Background(), n.entry("large"))
				n.check(err)
				defer o.Close()
				handles = append(handles, o)
			}
			c.files["large"] = random(2, 8*testPiece)
			c.mem.Put("large", c.files["large"])
			for _, n := range c.nodes {
				n.names.Changed(n.entry("large"))
			}
			c.nodes[0].wantFile("large", c.files["large"])
			for i, o := range handles {
				for off := int64(0); off < int64(len(old)); off += testPiece {
					got, err := readRetry(o, off, testPiece)
					if err != nil || !bytes.Equal(got, old[off:off+testPiece]) {
						t.Fatalf("node %d, offset %d: %v, %d bytes", i, off, err, len(got))
					}
				}
			}
		})
	}
}

// readRetry reads n bytes at an offset as package fs does.
func readRetry(o drivers.Object, off, n int64) ([]byte, error) {
	p := make([]byte, n)
	for {
		m, err := o.ReadAt(context.Background(), p, off)
		if errors.Is(err, drivers.ErrRetry) {
			continue
		}
		if err == io.EOF {
			err = nil
		}
		return p[:m], err
	}
}

// However many pieces of a file are read from the source, one descriptor is open there.
func TestPiecesShareTheSource(t *testing.T) {
	c := newCluster(t, divided(1, 1)...)
	data := random(1, 40*testPiece)
	c.files["large"] = data
	c.mem.Put("large", data)
	n := c.nodes[0]
	for range 2 {
		o, err := n.handler.Open(context.Background(), n.entry("large"))
		n.check(err)
		for i := range 40 {
			off := int64(i*7%40) * testPiece
			if got, err := readRetry(o, off, testPiece); err != nil || !bytes.Equal(got, data[off:off+testPiece]) {
				t.Fatalf("offset %d: %v, %d bytes", off, err, len(got))
			}
		}
		if got := c.source.opened(); got != 1 {
			t.Errorf("%d descriptors of the source are open, want 1", got)
		}
		o.Close()
	}
}

// A second open of a file that is read in pieces checks the version at the source, as that of a file in one
// does. If all pieces have copies, it makes no request.
func TestPiecesAreVerified(t *testing.T) {
	for name, tt := range map[string]struct{ quota, want int64 }{"no room": {1, 1}, "room": {1 << 30, 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source := verifiable{drivertest.NewMem(0)}
			opts := divided(1, tt.quota)
			opts[0].over = source
			c := newCluster(t, opts...)
			data := random(1, 4*testPiece)
			source.Put("large", data)
			n := c.nodes[0]
			first := n.open("large")
			defer first.Close()
			n.wantAt(first, 0, len(data), data)
			c.settle()
			before := n.from.Count(drivertest.OpVerify)
			n.open("large").Close()
			if got := n.from.Count(drivertest.OpVerify) - before; got != tt.want {
				t.Errorf("the second open made %d checks, want %d", got, tt.want)
			}
		})
	}
}

// A verifiable is a source whose files are drivers.Verifiers.
type verifiable struct{ *drivertest.Mem }

func (v verifiable) Open(ctx context.Context, name string) (drivers.Object, error) {
	o, err := v.Mem.Open(ctx, name)
	return unchanged{o}, err
}

type unchanged struct{ drivers.Object }

// Verify implements drivers.Verifier.
func (unchanged) Verify(context.Context) error { return nil }

// An open file that was replaced at the source keeps its pieces: they are not searched in the tiers again
// and again.
func TestPiecesOfReplacedFile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster(t, divided(1, 1<<30)...)
		data := random(1, 4*testPiece)
		c.mem.Put("large", data)
		n := c.nodes[0]
		n.wantFile("large", data)
		c.settle()
		obj := n.open("large")
		defer obj.Close()
		c.mem.Put("large", random(2, 4*testPiece))
		n.names.Changed(n.entry("large"))
		listed := n.to[0].Count(drivertest.OpReadDir)
		for range 5 {
			time.Sleep(2 * sourceTTL)
			n.wantAt(obj, 0, len(data), data)
		}
		if got := n.to[0].Count(drivertest.OpReadDir) - listed; got != 0 {
			t.Errorf("the tier was listed %d times", got)
		}
	})
}

// onDisk returns the options of a node that divides files, with a tier in a folder.
func onDisk(t *testing.T) rigOptions {
	t.Helper()
	store, err := posix.OpenStore(posix.StoreConfig{Tier: t.TempDir(), Dataset: "data", Source: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	opts := divided(1, 1<<30)[0]
	opts.onDisk = []drivers.Store{store}
	opts.tier.Timeout = time.Minute // a busy disk takes more than the default for 2,000 folders
	return opts
}

// A file is replaced by a directory that has a file with the name of a piece, or the reverse: the new file
// gets its copies, and those that were in their place give their room back.
func TestPiecesInThePlaceOfOthers(t *testing.T) {
	like := fmt.Sprintf("a/0.%d", 2*testPiece)
	for _, tt := range []struct{ old, now string }{{"a", like}, {like, "a"}, {"a", like + "/b"}} {
		t.Run(tt.old+" then "+tt.now, func(t *testing.T) {
			c := newCluster(t, onDisk(t))
			n := c.nodes[0]
			data := random(1, 2*testPiece)
			c.mem.Put(tt.old, data)
			n.wantFile(tt.old, data)
			c.settle()
			n.names.Changed(n.entry(strings.Split(tt.old, "/")[0]))
			c.mem.Delete("a")
			data = random(2, 2*testPiece)
			c.mem.Put(tt.now, data)
			n.wantFile(tt.now, data)
			c.settle()
			for i, p := range n.pieces(tt.now) {
				if p.Level() == tiers.AtSource {
					t.Errorf("piece %d has no copy", i)
				}
			}
			if got := int64(len(n.copies())); got != n.levels.Tiers()[0].Stats().Files {
				t.Errorf("the tier has %d copies: %q; it counts %d", got, n.copies(), n.levels.Tiers()[0].Stats().Files)
			}
		})
	}
}

// The name of a copy of a piece may be longer than PATH_MAX, and its elements are not longer than those of
// its file.
func TestPiecesOfLongNames(t *testing.T) {
	t.Parallel()
	c := newCluster(t, onDisk(t))
	n := c.nodes[0]
	elem := strings.Repeat("x", 255)
	for _, name := range []string{"a" + elem[1:], strings.Repeat(elem+"/", 15) + elem[1:], strings.Repeat("y/", 2046) + "yyy"} {
		data := random(uint64(len(name)), 2*testPiece)
		c.mem.Put(name, data)
		n.wantFile(name, data)
		c.settle()
		for i, p := range n.pieces(name) {
			if p.Level() == tiers.AtSource {
				t.Fatalf("piece %d of a name of %d bytes has no copy: %+v", i, len(name), n.levels.Tiers()[0].Stats())
			}
		}
	}
	if s := n.levels.Tiers()[0].Stats(); s.Errors != 0 || s.Health != tiers.Healthy {
		t.Errorf("the tier has failed: %+v", s)
	}
}

// An open of a large file starts few fills at a time, and in the end all pieces of this node have
// copies, without a read.
func TestPiecesAreFilledInTurn(t *testing.T) {
	t.Parallel()
	const pieces = 200
	opts := divided(2, 1<<30)
	opts[0].idle = true
	c := newCluster(t, opts...)
	c.mem.Put("large", random(1, pieces*testPiece))
	for i, most := range []int{1, pieces} {
		n := c.nodes[i]
		obj := n.open("large")
		defer obj.Close()
		n.handler.mu.Lock()
		if got := len(n.handler.fills); got > most {
			t.Errorf("node %d: got %d fills after the open, want %d at most", i, got, most)
		}
		n.handler.mu.Unlock()
	}
	owners, n := c.pieceOwners("large"), c.nodes[1]
	n.eventually("the owned pieces have copies", func() bool {
		for i, p := range n.pieces("large") {
			if owners[i] == 1 && p.Level() == tiers.AtSource {
				return false
			}
		}
		return true
	})
}

// While the source does not respond, the placed pieces of an open file are read, also while a read of
// another piece waits.
func TestPlacedPieceBesideHungPiece(t *testing.T) {
	t.Parallel()
	for _, op := range []drivertest.Op{drivertest.OpRead, drivertest.OpOpen} {
		t.Run(fmt.Sprint(op), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, divided(1, 2*tiers.Allocated(testPiece))...)
			data := random(1, 4*testPiece)
			c.mem.Put("large", data)
			n := c.nodes[0]
			for _, p := range n.pieces("large")[:2] {
				if outcome, err := n.handler.Place(t.Context(), p); outcome != Placed {
					t.Fatalf("piece: %v, %v", outcome, err)
				}
			}
			n.from.Add(drivertest.Rule{Op: op, Hang: true})
			obj := n.open("large")
			ended := make(chan error, 1)
			go func() {
				_, err := obj.ReadAt(context.Background(), make([]byte, 100), 3*testPiece)
				ended <- err
			}()
			defer func() {
				n.from.Clear()
				<-ended
				obj.Close()
			}()
			n.eventually("a read of the source hangs", func() bool { return n.from.Hung() > 0 })
			got := make([]byte, 2*testPiece)
			if k, err := obj.ReadAt(t.Context(), got, 0); k != len(got) || !bytes.Equal(got, data[:k]) {
				t.Errorf("got %d bytes and %v", k, err)
			}
			again := n.open("large")
			defer again.Close()
			if k, err := again.ReadAt(t.Context(), got[:100], 10); k != 100 || !bytes.Equal(got[:k], data[10:110]) {
				t.Errorf("after another open: got %d bytes and %v", k, err)
			}
			select {
			case err := <-ended:
				ended <- err
				t.Errorf("the read of the other piece has ended with %v", err)
			default:
			}
		})
	}
}

// While the source fails, a file is opened again for its placed pieces, as it is opened first.
func TestOpenPiecesWithoutTheSource(t *testing.T) {
	c := newCluster(t, divided(1, 2*tiers.Allocated(testPiece))...)
	data := random(1, 4*testPiece)
	c.mem.Put("large", data)
	n := c.nodes[0]
	for _, p := range n.pieces("large")[:2] {
		if outcome, err := n.handler.Place(t.Context(), p); outcome != Placed {
			t.Fatalf("piece: %v, %v", outcome, err)
		}
	}
	n.from.Add(drivertest.Rule{Op: drivertest.OpOpen, Err: syscall.EIO})
	for range 2 {
		obj := n.open("large")
		defer obj.Close()
		got := make([]byte, 2*testPiece)
		if k, err := obj.ReadAt(t.Context(), got, 0); k != len(got) || !bytes.Equal(got, data[:k]) {
			t.Errorf("got %d bytes and %v", k, err)
		}
	}
}

// After a read of the source has failed, the source is opened again. A file that was replaced meanwhile is
// read in the descriptor that is open.
func TestSourceOfPiecesFailsOnce(t *testing.T) {
	for name, replaced := range map[string]bool{"replaced": true, "not replaced": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, divided(1, 1)...)
			data := random(1, 4*testPiece)
			c.mem.Put("large", data)
			n := c.nodes[0]
			obj := n.open("large")
			defer obj.Close()
			if replaced {
				c.mem.Put("large", random(2, 4*testPiece))
			}
			opens := n.from.Count(drivertest.OpOpen)
			n.from.Add(drivertest.Rule{Op: drivertest.OpRead, Times: 1, Err: syscall.EIO})
			if _, err := readRetry(obj, 0, testPiece); !errors.Is(err, syscall.EIO) {
				t.Errorf("got %v, want the error of the source", err)
			}
			for off := int64(0); off < int64(len(data)); off += testPiece {
				if got, err := readRetry(obj, off, testPiece); err != nil || !bytes.Equal(got, data[off:off+testPiece]) {
					t.Errorf("offset %d: %v, %d bytes", off, err, len(got))
				}
			}
			if n.from.Count(drivertest.OpOpen) == opens {
				t.Error("the source was not opened again")
			}
		})
	}
}
