package fs_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/drivers/posix"
	"github.com/milkweedfs/milkweed/fs"
	"github.com/milkweedfs/milkweed/fs/fusectl"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/placement"
	"github.com/milkweedfs/milkweed/tiers"
)

// childEnv is the environment variable that makes the test binary run one of children. Tests
// access a mount from such a process, because the process that serves a mount must not use it.
const childEnv = "MILKWEED_TEST_CHILD"

func TestMain(m *testing.M) {
	if name := os.Getenv(childEnv); name != "" {
		if err := children[name](os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	files := descriptors()
	flag.Set("test.parallel", "8") // most of the tests wait; the command line may override it
	code := m.Run()
	os.RemoveAll(plainFolder)
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, "goroutines still running:", err)
		code = 1
	}
	if left := descriptors(); left > files+1 && code == 0 { // the network poller of Go has one
		fmt.Fprintf(os.Stderr, "descriptors still open: %d before the tests, %d after\n", files, left)
		code = 1
	}
	os.Exit(code)
}

// descriptors returns the number of descriptors that this process has open.
func descriptors() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic(err)
	}
	return len(entries)
}

// children are the functions that a child process can run, by name.
var children = map[string]func(args []string) error{
	"compare":  compareTrees,
	"forget":   forgetTree,
	"keep":     keepTree,
	"hold":     holdFile,
	"descend":  descend,
	"specials": specials,
	"xattrs":   readXattrs,
	"statfs":   readStatfs,
	"ways":     readWays,
	"list":     listFolder,
	"serve":    serveAsUser,
	"pfs":      servePFS,
	"access":   access,
}

// childCommand returns a command that runs one of children.
func childCommand(name string, args ...string) *exec.Cmd {
	program, err := childProgram()
	if err != nil {
		panic(err)
	}
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), childEnv+"="+name)
	return cmd
}

// childProgram returns the program that runs children. It is this one without the race detector,
// which takes half of the time of the tests if the children have it, too.
var childProgram = sync.OnceValues(func() (string, error) {
	if !drivertest.Race() {
		return os.Args[0], nil
	}
	var err error
	if plainFolder, err = os.MkdirTemp("", "milkweed-children-"); err != nil {
		return "", err
	}
	if err := os.Chmod(plainFolder, 0o755); err != nil { // other users run it
		return "", err
	}
	path := filepath.Join(plainFolder, "fs.test")
	if out, err := exec.Command("go", "test", "-c", "-o", path, ".").CombinedOutput(); err != nil {
		return "", fmt.Errorf("go test -c: %w\n%s", err, out)
	}
	return path, nil
})

// plainFolder has the program of children, if it is another one than this. TestMain removes it.
var plainFolder string

// child runs one of children and returns its output.
func child(t testing.TB, name string, args ...string) string {
	t.Helper()
	cmd := childCommand(name, args...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// sh runs a shell command, in which $1 and so on are args, and returns its output.
func sh(t testing.TB, script string, args ...string) string {
	t.Helper()
	out, err := trySh(script, args...)
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", script, args, err, out)
	}
	return out
}

func trySh(script string, args ...string) (string, error) {
	out, err := exec.Command("sh", append([]string{"-c", script, "sh"}, args...)...).CombinedOutput()
	return string(out), err
}

// compareTrees compares every file of a mount with the source. It reads pieces of random size at
// random offsets, which overlap, of several files at once. args are source, mount and seed.
func compareTrees(args []string) error {
	source, mount := args[0], args[1]
	seed, err := strconv.ParseUint(args[2], 10, 64)
	if err != nil {
		return err
	}
	var names []string
	err = filepath.WalkDir(source, func(p string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			rel, _ := filepath.Rel(source, p)
			names = append(names, rel)
		}
		return err
	})
	if err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(seed, 1))
	rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	var (
		wg    sync.WaitGroup
		queue = make(chan string)
		errs  = make(chan error, len(names))
	)
	for i := range 4 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(i)+2))
			buf := make([]byte, 512<<10)
			for name := range queue {
				if err := compareFiles(filepath.Join(source, name), filepath.Join(mount, name), rng, buf); err != nil {
					errs <- err
				}
			}
		})
	}
	for _, name := range names {
		queue <- name
	}
	close(queue)
	wg.Wait()
	close(errs)
	var all []error
	for err := range errs {
		all = append(all, err)
	}
	return errors.Join(all...)
}

// compareFiles compares a file of the mount with that of the source, by reads into buf.
func compareFiles(source, mount string, rng *rand.Rand, buf []byte) error {
	want, err := os.ReadFile(source)
	if err != nil {
		return err
	}
	f, err := os.Open(mount)
	if err != nil {
		return err
	}
	defer f.Close()
	for range len(want)/(256<<10) + 3 {
		off := rng.IntN(len(want) + 1)
		n := rng.IntN(len(buf)) + 1
		k, err := f.ReadAt(buf[:n], int64(off))
		if err != nil && err != io.EOF {
			return err
		}
		if !bytes.Equal(buf[:k], want[off:min(off+n, len(want))]) {
			return fmt.Errorf("%s: wrong bytes at %d+%d", mount, off, n)
		}
	}
	for off := 0; ; { // to the end of the file, by growing reads as those of io.ReadAll
		k, err := f.Read(buf[:min(512+off, len(buf))])
		if !bytes.Equal(buf[:k], want[off:min(off+k, len(want))]) {
			return fmt.Errorf("%s: wrong bytes", mount)
		}
		off += k
		if err == io.EOF && off == len(want) {
			return nil
		}
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return fmt.Errorf("%s: at %d: %w", mount, off, err)
		}
	}
}

// forgetTree drops the page cache of the files of a mount.
func forgetTree(args []string) error {
	return filepath.WalkDir(args[0], func(p string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		return dropPages(p)
	})
}

// keepTree locks the page cache of the files of a mount until standard input ends.
func keepTree(args []string) error {
	err := filepath.WalkDir(args[0], func(p string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		if info, err := d.Info(); err != nil || info.Size() == 0 {
			return err // an empty file cannot be mapped
		}
		m, err := openClosed(p)
		if err != nil {
			return err
		}
		return unix.Mlock(m.(*mapping).data)
	})
	if err != nil {
		return err
	}
	fmt.Println("open")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// holdFile opens a file in one of ways. Then it prints the hash of a range of the file for each
// line of standard input, which is an offset and a length.
func holdFile(args []string) error {
	f, err := ways[args[1]](args[0])
	if err != nil {
		fmt.Println("error", err)
		return nil
	}
	defer f.Close()
	fmt.Println("open")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var off, n int64
		if _, err := fmt.Sscan(in.Text(), &off, &n); err != nil {
			return err
		}
		buf := make([]byte, n)
		k, err := f.ReadAt(buf, off)
		if err != nil && err != io.EOF {
			fmt.Println("error", err)
			continue
		}
		fmt.Println(hash(buf[:k]))
	}
	return nil
}

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

// A held is a child process that holds a file open.
type held struct {
	t   testing.TB
	in  io.WriteCloser
	out *bufio.Scanner
	cmd *exec.Cmd
}

// hold holds a file open for read(2).
func hold(t testing.TB, path string) *held {
	t.Helper()
	return holdBy(t, "read", path)
}

// holdBy holds a file open in one of ways.
func holdBy(t testing.TB, way, path string) *held {
	t.Helper()
	return holder(t, "hold", path, way)
}

// holder starts one of children that prints "open" and runs until its standard input ends.
func holder(t testing.TB, name string, args ...string) *held {
	t.Helper()
	cmd := childCommand(name, args...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h := &held{t: t, in: in, out: bufio.NewScanner(out), cmd: cmd}
	t.Cleanup(h.close)
	if got := h.line(); got != "open" {
		t.Fatalf("%s %q: %s", name, args, got)
	}
	return h
}

// line returns the next line of output.
func (h *held) line() string {
	if !h.out.Scan() {
		return "child ended"
	}
	return h.out.Text()
}

// read returns the hash of n bytes at off, or "error" and the error.
func (h *held) read(off, n int64) string {
	fmt.Fprintln(h.in, off, n)
	return h.line()
}

// close closes the file and waits for the child.
func (h *held) close() {
	h.in.Close()
	h.cmd.Wait()
}

// A stack is a mounted dataset with all of its layers, in this process.
type stack struct {
	t       testing.TB
	dir     string // the parent of the folders below
	source  string
	point   string
	tiers   string // the parent of the folders of the tiers
	opts    stackOptions
	from    *drivertest.Faults   // around the source
	to      []*drivertest.Faults // around the tiers
	stores  []*posix.Store
	levels  *tiers.Hierarchy
	names   *metadata.Container
	handler *placement.Handler
	mount   *fs.Mount
	control *fusectl.Connection // of the mount; nil without the right to have it

	stop    context.CancelFunc
	running sync.WaitGroup
}

type stackOptions struct {
	quotas  []tiers.Quota // of the tiers
	first   string        // the generation that is mounted; empty: the source has none
	timeout time.Duration // TTL of names and attributes; 0 is an hour
	window  time.Duration // the names are swept within it; 0: they are not
	tier    tiers.Options
	workers int
	allow   bool
	xattrs  bool
	memory  bool                      // tiers are in memory and have no fault injection
	over    string                    // the folder of the source; empty: a new one
	tiers   string                    // the parent of the folders of the tiers; empty: a new one
	user    bool                      // the read-ahead is that of a mount without root
	mode    fs.Mode                   // how the kernel reads the content of files
	log     io.Writer                 // the log of the daemon; nil: discarded
	wrap    func(fs.Opener) fs.Opener // returns a wrapper of the opener; nil: no wrapper
}

// modes are the ways in which the kernel reads the content of files.
var modes = []fs.Mode{fs.Cached, fs.Passthrough, fs.Stateless}

// eachMode runs a test in all modes, in parallel.
func eachMode(t *testing.T, test func(t *testing.T, mode fs.Mode)) {
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			test(t, mode)
		})
	}
}

func bytesQuota(n int64) tiers.Quota { return tiers.Quota{Bytes: n} }

// newStack makes the folders of a stack, calls fill to write the dataset, and mounts it. It ends
// the stack when the test ends.
func newStack(t testing.TB, opts stackOptions, fill func(source string)) *stack {
	t.Helper()
	drivertest.Need(t, "/dev/fuse")
	dir := t.TempDir()
	s := &stack{t: t, dir: dir, source: filepath.Join(dir, "source"), point: filepath.Join(dir, "mnt"), tiers: dir, opts: opts}
	for _, d := range []string{s.source, s.point} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if opts.memory {
		folder, err := os.MkdirTemp("/dev/shm", "milkweed-test-")
		s.check(err)
		t.Cleanup(func() { os.RemoveAll(folder) })
		s.tiers = folder
	}
	if opts.tiers != "" {
		s.tiers = opts.tiers
	}
	if opts.over != "" {
		s.source = opts.over
	} else {
		fill(s.source)
	}
	s.start()
	t.Cleanup(s.end)
	return s
}

// start mounts the dataset.
func (s *stack) start() {
	s.t.Helper()
	log := slog.New(slog.DiscardHandler)
	if s.opts.log != nil {
		log = slog.New(slog.NewTextHandler(s.opts.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	source, err := posix.OpenDir(s.source)
	s.check(err)
	s.from = drivertest.NewFaults(source)
	var configs []tiers.Config
	s.to, s.stores = nil, nil
	for i, q := range s.opts.quotas {
		name, path := "tier"+strconv.Itoa(i+1), s.tierPath(i+1)
		store, err := posix.OpenStore(posix.StoreConfig{
			Tier: path, Dataset: "data", Source: s.source, Mountpoint: s.point,
		})
		s.check(err)
		s.stores = append(s.stores, store)
		config := tiers.Config{Name: name, Path: path, Store: store, Quota: q}
		if !s.opts.memory {
			faults := drivertest.NewFaults(store)
			s.to = append(s.to, faults)
			config.Store = faults
		}
		configs = append(configs, config)
	}
	s.levels, err = tiers.New(s.from, configs, s.opts.tier, log)
	s.check(err)
	timeout := s.opts.timeout
	if timeout == 0 {
		timeout = time.Hour
	}
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.names, err = metadata.New(ctx, s.levels, metadata.Options{TTL: timeout, Generation: s.opts.first}, log)
	s.check(err)
	workers := s.opts.workers
	if workers == 0 {
		workers = 4
	}
	s.handler = placement.New(s.levels, s.names, placement.Config{Workers: workers, IdleHandles: 1000, Passthrough: s.opts.mode == fs.Passthrough}, log)
	s.running.Go(func() { s.levels.Run(ctx) })
	s.running.Go(func() { s.handler.Run(ctx) })
	if s.opts.window > 0 {
		s.running.Go(func() { s.names.Sweep(ctx, s.opts.window) })
	}
	s.levels.WaitScanned(ctx)
	var opener fs.Opener = s.handler
	if s.opts.wrap != nil {
		opener = s.opts.wrap(opener)
	}
	s.mount, err = fs.New(s.names, opener, fs.Config{Point: s.point, Source: s.source, AllowOther: s.opts.allow, Xattrs: s.opts.xattrs, NegativeTTL: timeout, Mode: s.opts.mode}, log)
	s.check(err)
	s.control, _ = fusectl.Open(s.device())
	if !s.opts.user && os.Geteuid() == 0 {
		s.check(fusectl.SetReadAhead(s.device(), fs.MaxRequest))
	}
	s.running.Go(func() { s.mount.Wait(); source.Close() })
}

// device returns the device number of the mount.
func (s *stack) device() uint64 {
	s.t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	s.check(err)
	for line := range strings.Lines(string(mounts)) {
		var major, minor uint32
		if f := strings.Fields(line); f[4] == s.point {
			_, err := fmt.Sscanf(f[2], "%d:%d", &major, &minor)
			s.check(err)
			return unix.Mkdev(major, minor)
		}
	}
	s.t.Fatal("not mounted: ", s.point)
	return 0
}

// end unmounts the dataset, if it is mounted, and shuts the stack down.
func (s *stack) end() {
	s.t.Helper()
	if s.mount == nil {
		return
	}
	for _, f := range append(s.to, s.from) {
		f.Clear()
	}
	err := s.mount.Unmount()
	for range 500 { // a process that another test starts has a copy of a descriptor of the mount until exec
		if !errors.Is(err, syscall.EBUSY) {
			break
		}
		time.Sleep(10 * time.Millisecond)
		err = s.mount.Unmount()
	}
	if err != nil {
		s.t.Errorf("unmount: %v", err)
		s.mount.Detach()
	}
	select {
	case <-s.mount.Ended():
	case <-time.After(10 * time.Second): // a mount namespace of another program has a copy of the mount
		s.check(s.control.Abort())
	}
	s.shut()
}

// shut stops all layers of a stack whose mount has ended.
func (s *stack) shut() {
	s.t.Helper()
	s.stop()
	s.running.Wait()
	s.control.Close()
	for _, store := range s.stores {
		s.check(closeUnshared(store))
	}
	s.mount = nil
}

// closeUnshared closes a store while no child is being started. Until its exec, a child of this
// process has the descriptor of the lock, so that the store could not be opened again.
func closeUnshared(store *posix.Store) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return store.Close()
}

// restart unmounts the dataset and mounts it as a new daemon would.
func (s *stack) restart() {
	s.t.Helper()
	s.end()
	s.start()
}

func (s *stack) check(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// in returns the path of a name below the mount.
func (s *stack) in(name string) string { return filepath.Join(s.point, name) }

// epoch reads the whole dataset in a child and compares it with the source.
func (s *stack) epoch(seed int) {
	s.t.Helper()
	child(s.t, "compare", s.source, s.point, strconv.Itoa(seed))
}

// forgetPages drops the page cache of all files, so that reads reach the daemon.
func (s *stack) forgetPages() {
	s.t.Helper()
	child(s.t, "forget", s.point)
}

// keepPages reads all files and locks their page cache until the test ends. Otherwise the kernel
// may reclaim pages at any time. With proactive reclaim (DAMON) it does so even when much memory
// is free.
func (s *stack) keepPages() {
	s.t.Helper()
	holder(s.t, "keep", s.point)
}

// settled waits until no copy is in flight or about to be made, and the kernel may read all copies directly.
func (s *stack) settled() {
	s.t.Helper()
	s.eventually("copies end", func() bool {
		stats := s.handler.Stats()
		return stats.InFlight == 0 && stats.Background == 0 && stats.Unchecked == 0
	})
}

// closed waits until all files are closed. The kernel sends RELEASE after the close, and a file is in
// use until that has ended.
func (s *stack) closed() {
	s.t.Helper()
	s.eventually("all files are closed", func() bool { return s.mount.OpenFiles() == 0 && s.mount.Stuck(0).Requests == 0 })
}

// eventually waits until f is true.
func (s *stack) eventually(what string, f func() bool) {
	s.t.Helper()
	drivertest.Eventually(s.t, what, f)
}

// write makes a file with random content.
func write(t testing.TB, dir, name string, size int, seed uint64) []byte {
	t.Helper()
	data := make([]byte, size)
	chacha(seed, data)
	p := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return data
}

// chacha fills data with random bytes that depend on seed.
func chacha(seed uint64, data []byte) {
	var key [32]byte
	for i := range key {
		key[i] = byte(seed >> (8 * (i % 8)))
	}
	rand.NewChaCha8(key).Read(data)
}

// mixed returns a fill for newStack that writes small files in folders, two large files, an empty
// file and an empty folder. total is their size, about 25 MB, after fill was called.
func mixed(t testing.TB) (fill func(string), total *int64) {
	total = new(int64)
	return func(source string) {
		for i := range 60 {
			size := 1000 * (i + 1)
			write(t, source, fmt.Sprintf("class%d/%03d.bin", i%6, i), size, uint64(i))
			*total += int64(size)
		}
		for i := range 2 {
			size := 11<<20 + i*12345
			write(t, source, fmt.Sprintf("large%d.rec", i), size, uint64(1000+i))
			*total += int64(size)
		}
		write(t, source, "empty", 0, 0)
		if err := os.Mkdir(filepath.Join(source, "emptydir"), 0o755); err != nil {
			t.Fatal(err)
		}
	}, total
}

// tierPath returns the folder of a tier.
func (s *stack) tierPath(i int) string {
	return filepath.Join(s.tiers, "tier"+strconv.Itoa(i))
}

// tierFiles lists the copies in the folder of a tier.
func (s *stack) tierFiles(i int) []string {
	s.t.Helper()
	out := sh(s.t, `[ -d "$1" ] || exit 0; cd "$1" && find . -type f -printf '%P\n' | sort`, filepath.Join(s.tierPath(i), "data", "files"))
	return strings.Fields(out)
}
