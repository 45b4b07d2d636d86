package fs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/splice"
	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/fs"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

func init() {
	children["storm"] = storm
	children["overwrite"] = overwrite
	children["probe"] = probeFile
}

// ways are the ways in which a program can hold a file open.
var ways = map[string]func(path string) (opened, error){
	"read":   openRead,
	"direct": openDirect,
	"mapped": openMapped,
	"closed": openClosed,
}

// An opened is a file that a program holds open.
type opened interface {
	io.ReaderAt
	io.Closer
}

func openRead(path string) (opened, error) { return os.Open(path) }

// openDirect opens a file for reads that bypass the page cache.
func openDirect(path string) (opened, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECT, 0)
	return &directFile{File: f}, err
}

type directFile struct{ *os.File }

// ReadAt reads the whole pages that contain the range, into memory that is aligned to a page, as
// O_DIRECT requires.
func (f *directFile) ReadAt(p []byte, off int64) (int, error) {
	const page = 4096
	start := off &^ (page - 1)
	end := (off + int64(len(p)) + page - 1) &^ (page - 1)
	raw := make([]byte, end-start+page)
	skip := -int(uintptr(unsafe.Pointer(&raw[0]))) & (page - 1)
	n, err := f.File.ReadAt(raw[skip:skip+int(end-start)], start)
	if err == io.EOF {
		err = nil
	}
	have := raw[skip:][:n]
	if int64(len(have)) < off-start {
		return 0, io.EOF
	}
	return copy(p, have[off-start:]), err
}

// openMapped maps a file, shared, and holds it open.
func openMapped(path string) (opened, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return mapFile(f, f.Close)
}

// openClosed maps a file, shared, and closes it, so that only the mapping remains.
func openClosed(path string) (opened, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return mapFile(f, func() error { return nil })
}

type mapping struct {
	*bytes.Reader
	data  []byte
	close func() error
}

func mapFile(f *os.File, close func() error) (opened, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	data, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	return &mapping{bytes.NewReader(data), data, close}, err
}

func (m *mapping) Close() error { return errors.Join(unix.Munmap(m.data), m.close()) }

// The open-mode matrix: a file that is held open in any way since before, during or after its
// copy can be opened in any way at any later time, and both handles read its content. The kernel
// reads a file by itself unless a handle from before the end of the copy is open.
func TestOpenModes(t *testing.T) {
	t.Parallel()
	stages := []string{"before", "during", "after"}
	const size = 2<<20 + 1
	data := make([]byte, size)
	chacha(1, data)
	each := func(f func(name string, stage1, stage2 int)) {
		for stage1 := range stages {
			for stage2 := stage1; stage2 < len(stages); stage2++ {
				f(fmt.Sprintf("%s_%s", stages[stage1], stages[stage2]), stage1, stage2)
			}
		}
	}
	for way1 := range ways {
		for way2 := range ways {
			t.Run(way1+"_"+way2, func(t *testing.T) {
				t.Parallel()
				// The files are so few that none is prefetched.
				s := newStack(t, stackOptions{mode: fs.Passthrough, quotas: []tiers.Quota{bytesQuota(1 << 30)}, workers: 1}, func(source string) {
					each(func(name string, _, _ int) {
						if err := os.WriteFile(filepath.Join(source, name), data, 0o644); err != nil {
							t.Fatal(err)
						}
					})
				})
				each(func(name string, stage1, stage2 int) {
					t.Run(name, func(t *testing.T) { s.testOpenModes(t, name, way1, way2, stage1, stage2, data) })
				})
			})
		}
	}
}

// testOpenModes is TestOpenModes for one file and two handles.
func (s *stack) testOpenModes(t *testing.T, name, way1, way2 string, stage1, stage2 int, data []byte) {
	s.t = t
	defer s.from.Clear()
	s.from.Add(drivertest.Rule{Op: drivertest.OpRead, Hang: true})
	h1, h2 := s.openBetween(name, way1, way2, stage1, stage2)
	for _, h := range []*held{h1, h2} {
		if got, want := h.read(4096, int64(len(data))), hash(data[4096:]); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	byKernel := s.handler.Stats().Passthrough[1].Files
	h3 := hold(t, s.in(name))
	if got, want := s.handler.Stats().Passthrough[1].Files-byKernel == 1, stage1 == 2; got != want {
		t.Errorf("the kernel reads a third open by itself: got %v, want %v", got, want)
	}
	for _, h := range []*held{h1, h2, h3} {
		h.close()
	}
	s.closed()
	byKernel = s.handler.Stats().Passthrough[1].Files
	h4 := hold(t, s.in(name))
	if got, want := h4.read(0, int64(len(data))), hash(data); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	h4.close()
	if got := s.handler.Stats().Passthrough[1].Files - byKernel; got != 1 {
		t.Errorf("opens that the kernel reads by itself after all handles are closed: got %d, want 1", got)
	}
	s.closed()
}

// openBetween copies a file of 3 blocks, and opens it at two stages of the copy: before it, while
// a fault holds it up, and after it.
func (s *stack) openBetween(name, way1, way2 string, stage1, stage2 int) (h1, h2 *held) {
	s.t.Helper()
	for stage := range 3 {
		switch stage {
		case 1: // some blocks are copied
			if stage1 == 0 {
				s.eventually("the source hangs", func() bool { return s.from.Hung() == 2 })
				s.from.Release()
				s.eventually("two blocks are copied", func() bool { return s.filled(name) == 2<<20 })
			}
		case 2:
			s.from.Clear()
			if stage1 == 2 {
				sh(s.t, `cat "$1" > /dev/null`, s.in(name))
				s.closed()
			}
			s.settled()
		}
		if stage == stage1 {
			h1 = holdBy(s.t, way1, s.in(name))
		}
		if stage == 1 && stage1 == 1 {
			s.eventually("the source hangs", func() bool { return s.from.Hung() == 2 })
			s.from.Release()
			s.eventually("two blocks are copied", func() bool { return s.filled(name) == 2<<20 })
		}
		if stage == stage2 {
			h2 = holdBy(s.t, way2, s.in(name))
		}
	}
	return h1, h2
}

// filled returns how many bytes of a file the fill in flight has copied.
func (s *stack) filled(name string) int64 {
	s.t.Helper()
	e, err := s.names.Resolve(s.t.Context(), name)
	s.check(err)
	f, _ := s.handler.Filling(e)
	return f.Copied
}

// Many processes open files in all ways and hold some of them open, while the files are copied,
// the copies are removed by hand, and the files are copied again. No process sees an error or a
// wrong byte.
func TestOpenModesAtOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("has many readers for long")
	}
	t.Parallel()
	const files, processes = 10, 32
	s := newStack(t, stackOptions{
		mode: fs.Passthrough, quotas: []tiers.Quota{bytesQuota(1 << 30), bytesQuota(1 << 30)},
	}, func(source string) {
		for i := range files {
			write(t, source, fmt.Sprint("f", i), 300_000*(i+1), uint64(i))
		}
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, n := range []int{processes, 4} { // all files may be open all the time with 32, not with 4
			var children sync.WaitGroup
			for i := range n {
				children.Go(func() { child(t, "storm", s.source, s.point, strconv.Itoa(i)) })
			}
			children.Wait()
		}
	}()
	for i := 0; ; i++ {
		select {
		case <-done:
			st := s.handler.Stats()
			if st.Passthrough[1].Files == 0 || st.FillOpens.Files == 0 || st.Placed <= files {
				t.Errorf("passthrough, reads of fills and repeated copies did not all occur: %+v", st)
			}
			return
		case <-time.After(20 * time.Millisecond):
			os.Remove(filepath.Join(s.tierPath(1), "data", "files", fmt.Sprint("f", i%files)))
		}
	}
}

// storm opens the files of a mount in random ways, closes them at random times, and compares their
// content with the source. args are source, mount and seed.
func storm(args []string) error {
	seed, err := strconv.ParseUint(args[2], 10, 64)
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(args[0])
	if err != nil {
		return err
	}
	type open struct {
		opened
		want []byte
		what string
	}
	var (
		rng     = rand.New(rand.NewPCG(seed, 3))
		kinds   = []string{"read", "direct", "mapped", "closed"}
		holding []open
	)
	for range 60 {
		name := entries[rng.IntN(len(entries))].Name()
		way := kinds[rng.IntN(len(kinds))]
		want, err := os.ReadFile(filepath.Join(args[0], name))
		if err != nil {
			return err
		}
		f, err := ways[way](filepath.Join(args[1], name))
		if err != nil {
			return fmt.Errorf("%s: %w", way, err)
		}
		holding = append(holding, open{f, want, way + " " + name})
		for _, o := range holding {
			off := rng.IntN(len(o.want))
			got := make([]byte, min(1+rng.IntN(100_000), len(o.want)-off))
			if n, err := o.ReadAt(got, int64(off)); n < len(got) {
				return fmt.Errorf("%s: %d bytes of %d at %d: %w", o.what, n, len(got), off, err)
			}
			if !bytes.Equal(got, o.want[off:][:len(got)]) {
				return fmt.Errorf("%s: wrong bytes at %d", o.what, off)
			}
		}
		for len(holding) > rng.IntN(4) {
			i := rng.IntN(len(holding))
			if err := holding[i].Close(); err != nil {
				return err
			}
			holding = append(holding[:i], holding[i+1:]...)
		}
	}
	return nil
}

// If no tier has room, a large file is read by the kernel from the source, in passthrough. A small
// file is opened at the source once.
func TestFilesThatStayAtTheSource(t *testing.T) {
	t.Parallel()
	s := newStack(t, stackOptions{mode: fs.Passthrough, quotas: []tiers.Quota{bytesQuota(1 << 20)}}, func(source string) {
		write(t, source, "large", 9<<20, 1)
		for i := range 20 {
			write(t, source, fmt.Sprint("small", i), 2<<20, uint64(i))
		}
	})
	for range 3 {
		s.epoch(1)
		s.forgetPages()
	}
	s.closed()
	st, src := s.handler.Stats(), s.levels.Source().Stats()
	if got := st.Passthrough[tiers.AtSource].Files; got == 0 {
		t.Error("no open of a file at the source was in passthrough")
	}
	if got := st.Passthrough[tiers.AtSource]; got.Bytes != got.Files*(9<<20) {
		t.Errorf("opens in passthrough of files other than the large one: %+v", got)
	}
	if src.Opens != 21 {
		t.Errorf("opens at the source in three epochs: got %d, want 21, one for each file", src.Opens)
	}
	if st.IdleHandles != 21 {
		t.Errorf("idle handles at the source: got %d, want 21", st.IdleHandles)
	}
}

// In stateless mode the kernel sends no OPEN, and reads content that it has cached without a
// round trip.
func TestStateless(t *testing.T) {
	t.Parallel()
	fill, total := mixed(t)
	s := newStack(t, stackOptions{mode: fs.Stateless, quotas: []tiers.Quota{bytesQuota(1 << 30)}}, fill)
	s.epoch(1)
	s.settled()
	if got := s.levels.Source().Stats().Bytes; got != *total {
		t.Errorf("bytes of the source in the first epoch: got %d, want %d", got, *total)
	}
	s.forgetPages()
	s.epoch(2)
	s.keepPages()
	before := s.levels.Tier(1).Stats().Reads
	s.epoch(3)
	if got := s.levels.Tier(1).Stats().Reads - before; got != 0 {
		t.Errorf("reads in an epoch that the page cache holds: got %d, want 0", got)
	}
	if got := s.mount.OpenFiles(); got != 0 {
		t.Errorf("open files: got %d, want 0", got)
	}
}

// When a copy in passthrough is overwritten in place, the next open notices it.
func TestPassthroughOfChangedCopy(t *testing.T) {
	s := newStack(t, stackOptions{mode: fs.Passthrough, quotas: []tiers.Quota{bytesQuota(1 << 30)}}, func(source string) {
		write(t, source, "f", 1<<20, 1)
	})
	s.epoch(1)
	s.settled()
	s.closed() // until then, the daemon reads the file
	s.epoch(2)
	if s.handler.Stats().Passthrough[1].Files == 0 {
		t.Error("the copy was not opened in passthrough")
	}
	child(t, "overwrite", filepath.Join(s.tierPath(1), "data", "files", "f"))
	s.epoch(3)
	s.settled()
	s.epoch(4)
}

// overwrite writes to a file in place.
func overwrite(args []string) error {
	f, err := os.OpenFile(args[0], os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteAt([]byte("spoilt"), 1000)
	return err
}

// With the read-ahead of a mount without root, reads of copies in memory are spliced. A copy that
// another program has truncated is not read.
func TestSplice(t *testing.T) {
	for _, mode := range []fs.Mode{fs.Cached, fs.Stateless} {
		t.Run(mode.String(), func(t *testing.T) {
			fill, _ := mixed(t)
			var spliced spliceCount
			s := newStack(t, stackOptions{mode: mode, quotas: []tiers.Quota{bytesQuota(1 << 30)}, memory: true, user: true, wrap: spliced.of}, fill)
			s.epoch(1)
			s.settled()
			for i := range 3 {
				s.forgetPages()
				splice.ClearSplicePool()
				spliced.n.Store(0)
				s.epoch(i + 2)
				if spliced.n.Load() == 0 {
					t.Error("no read was spliced")
				}
				sh(t, `find "$1" -name '*'$2'.bin' -exec truncate -s 5 {} +`, s.tierPath(1)+"/data/files", strconv.Itoa(i))
			}
			// A pipe is released after its reply.
			s.eventually("no pipe is in use", func() bool { return splice.Used() == 0 })
		})
	}
}

// A spliceCount is an Opener that counts the spliced replies which end while a pipe is open. The
// number of pipes after an epoch would not do: the mount closes idle ones every 5 seconds.
type spliceCount struct {
	fs.Opener
	n atomic.Int64
}

// of makes c a wrapper of o.
func (c *spliceCount) of(o fs.Opener) fs.Opener {
	c.Opener = o
	return c
}

func (c *spliceCount) Open(ctx context.Context, e *metadata.Entry) (drivers.Object, error) {
	obj, err := c.Opener.Open(ctx, e)
	if err != nil {
		return nil, err
	}
	return &splicedObject{obj, c}, nil
}

func (c *spliceCount) ReadAt(ctx context.Context, e *metadata.Entry, p []byte, off int64) (int, error) {
	return c.Opener.(fs.Reader).ReadAt(ctx, e, p, off)
}

func (c *spliceCount) SpliceDescriptor(e *metadata.Entry) (fd uintptr, release func(n int), err error) {
	return c.counted(c.Opener.(fs.Reader).SpliceDescriptor(e))
}

// counted returns a splice descriptor whose release counts.
func (c *spliceCount) counted(fd uintptr, release func(n int), err error) (uintptr, func(n int), error) {
	return fd, func(n int) {
		if splice.Total() > 0 {
			c.n.Add(1)
		}
		release(n)
	}, err
}

// A splicedObject is an Object whose spliced replies are counted.
type splicedObject struct {
	drivers.Object
	count *spliceCount
}

func (o *splicedObject) SpliceDescriptor() (fd uintptr, release func(n int), err error) {
	s, ok := drivers.As[drivers.Splicer](o.Object)
	if !ok {
		return 0, nil, drivers.ErrRetry
	}
	return o.count.counted(s.SpliceDescriptor())
}

// ProbePassthrough registers each file with the kernel and reports why it cannot be a backing file.
func TestProbePassthrough(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "f", 1, 1)
	file, err := os.Open(filepath.Join(dir, "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	folder, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	errs := fs.ProbePassthrough([]*os.File{file, folder, file})
	if errs[0] != nil || errs[1] == nil || errs[2] != nil {
		t.Errorf("a file, a folder, a file: got %v; want nil, an error, nil", errs)
	}
	for rights, want := range map[string]string{
		"-sys_admin":    fs.ErrPrivilege.Error(),
		"-dac_override": "<nil>",
	} {
		cmd := childCommand("probe", filepath.Join(dir, "f"))
		cmd.Args = append([]string{"setpriv", "--bounding-set=" + rights}, cmd.Args...)
		cmd.Path = "/usr/bin/setpriv"
		out, err := cmd.CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != want {
			t.Errorf("with rights %s: got %q, %v; want %q", rights, got, err, want)
		}
	}
}

// probeFile prints the result of ProbePassthrough for a file.
func probeFile(args []string) error {
	f, err := os.Open(args[0])
	if err != nil {
		return err
	}
	defer f.Close()
	fmt.Println(fs.ProbePassthrough([]*os.File{f})[0])
	return nil
}
