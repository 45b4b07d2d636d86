package fs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/fs"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

func init() { children["generations"] = readGenerations }

// generationFiles are the files of each generation. The content of a file begins with the name of
// its generation.
const generationFiles = 6

// writeGenerations writes two generations of a dataset, and a file beside them.
func writeGenerations(source string) {
	for _, g := range []string{"g0", "g1"} {
		for i := range generationFiles {
			for _, name := range []string{fmt.Sprintf("d/e/f%d", i), fmt.Sprintf("top%d", i)} {
				mustWrite(filepath.Join(source, g, name), bytes.Repeat([]byte(g+" "+name+"\n"), 5000))
			}
		}
		mustWrite(filepath.Join(source, g, "only-"+g), []byte(g))
	}
	mustWrite(filepath.Join(source, "README"), []byte("beside"))
}

func mustWrite(path string, data []byte) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		panic(err)
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		panic(err)
	}
}

// newGenerations mounts the first of two generations.
func newGenerations(t *testing.T, mode fs.Mode) *stack {
	return newStack(t, stackOptions{quotas: []tiers.Quota{bytesQuota(64 << 20)}, mode: mode, first: "g0"}, writeGenerations)
}

// A switchCount is in a file that processes share.
type switchCount struct {
	n     atomic.Uint64 // odd while a switch is in progress; the generation in use is half of it, modulo 2
	pairs atomic.Uint64 // that were opened between two switches, and read
}

func openSwitchCount(path string) (*switchCount, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	const size = int(unsafe.Sizeof(switchCount{}))
	if err := f.Truncate(int64(size)); err != nil {
		return nil, err
	}
	b, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return (*switchCount)(unsafe.Pointer(&b[0])), nil
}

// readGenerations opens and reads files, in several ways and by several threads, until the standard
// input ends. If no switch was in progress while it opened two files, both must be of the generation
// in use, also when they are read later, and names of the other one must be missing. args are the
// mount and the file of the switchCount.
func readGenerations(args []string) error {
	count, err := openSwitchCount(args[1])
	if err != nil {
		return err
	}
	stop := make(chan struct{})
	go func() {
		os.Stdin.Read(make([]byte, 1))
		close(stop)
	}()
	var (
		readers sync.WaitGroup
		mu      sync.Mutex
		wrong   []string
	)
	for r := range 8 {
		readers.Go(func() {
			for i := r; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				if ok, err := readPair(args[0], count, i); err != nil {
					mu.Lock()
					wrong = append(wrong, err.Error())
					mu.Unlock()
					return
				} else if ok {
					count.pairs.Add(1)
				}
			}
		})
	}
	readers.Wait()
	if len(wrong) > 0 {
		return errors.New(strings.Join(wrong, "\n"))
	}
	return nil
}

// readPair opens two files, and reads them after that.
func readPair(mount string, count *switchCount, i int) (ok bool, err error) {
	if i%4 == 0 { // a listing also gives the kernel nodes
		if _, err := os.ReadDir(mount); err != nil {
			return false, err
		}
	}
	way := []string{"read", "mapped", "closed"}[i/7%3]
	names := []string{fmt.Sprintf("d/e/f%d", i%generationFiles), fmt.Sprintf("top%d", i/3%generationFiles)}
	before := count.n.Load()
	var files []opened
	for _, name := range names {
		f, err := ways[way](filepath.Join(mount, name))
		if err != nil {
			return false, fmt.Errorf("open %s: %w", name, err)
		}
		defer f.Close()
		files = append(files, f)
	}
	g := fmt.Sprintf("g%d", before/2%2)
	_, here := os.Stat(filepath.Join(mount, "only-"+g))
	_, gone := os.Stat(filepath.Join(mount, fmt.Sprintf("only-g%d", 1-before/2%2)))
	ok = before%2 == 0 && count.n.Load() == before
	for k, name := range names {
		want := bytes.Repeat([]byte(g+" "+name+"\n"), 5000)
		got := make([]byte, len(want))
		if _, err := files[k].ReadAt(got, 0); err != nil {
			return ok, fmt.Errorf("read %s: %w", name, err)
		}
		if first := got[:3]; !ok {
			want = bytes.Repeat([]byte(string(first)+name+"\n"), 5000) // any, but one
		}
		if !bytes.Equal(got, want) {
			return ok, fmt.Errorf("%s begins with %q, want %q", name, got[:40], want[:40])
		}
	}
	if ok && (here != nil || !errors.Is(gone, os.ErrNotExist)) {
		return ok, fmt.Errorf("in %s: its own name: %v; that of the other one: %v", g, here, gone)
	}
	return ok, nil
}

// Each pair of files that is opened between two switches is of the generation in use. No reader sees
// an error, or a mixture.
func TestSwitches(t *testing.T) {
	if testing.Short() {
		t.Skip("switches a thousand times")
	}
	t.Parallel()
	const switches = 1000
	for _, epochs := range []bool{true, false} {
		t.Run(fmt.Sprintf("epochs=%v", epochs), func(t *testing.T) {
			t.Parallel()
			eachMode(t, func(t *testing.T, mode fs.Mode) {
				s := newGenerations(t, mode)
				if !epochs {
					s.mount.DisableEpochs()
				} else if !s.mount.HasEpochs() {
					t.Fatal("the kernel counts no epochs, which needs Linux 6.16")
				}
				file := filepath.Join(s.dir, "count")
				count, err := openSwitchCount(file)
				s.check(err)
				cmd := childCommand("generations", s.point, file)
				var out bytes.Buffer
				cmd.Stdout, cmd.Stderr = &out, &out
				in, err := cmd.StdinPipe()
				s.check(err)
				s.check(cmd.Start())
				ended := make(chan error, 1)
				go func() { ended <- cmd.Wait() }()
				for i := range switches {
					time.Sleep(2 * time.Millisecond)
					// A slow machine needs longer for a pair.
					for seen := count.pairs.Load(); i%5 == 0 && count.pairs.Load() == seen; time.Sleep(time.Millisecond) {
						select {
						case err := <-ended:
							t.Fatalf("%v: %s", err, out.String())
						default:
						}
					}
					count.n.Add(1)
					_, err := s.mount.Switch(t.Context(), fmt.Sprintf("g%d", (i+1)%2))
					s.check(err)
					count.n.Add(1)
				}
				in.Close()
				if err := <-ended; err != nil {
					t.Errorf("%v: %s", err, out.String())
				}
				t.Logf("%d pairs between %d switches", count.pairs.Load(), switches)
				s.closed()
			})
		})
	}
}

// Relative paths follow their directory, also after a switch, and open files stay what they are.
func TestSwitchKeepsWhatIsOpen(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode fs.Mode) {
		s := newGenerations(t, mode)
		cmd := exec.Command("sh", "-c", `
			cd "$1/d/e" && exec 3<f0 && echo ready && read line
			head -n 1 f1; head -n 1 <&3; head -n 1 "$1/d/e/f1"; head -n 1 ../e/f2; head -n 1 "$1/top0"`, "sh", s.point)
		in, err := cmd.StdinPipe()
		s.check(err)
		out, err := cmd.StdoutPipe()
		s.check(err)
		s.check(cmd.Start())
		_, err = out.Read(make([]byte, 6))
		s.check(err)
		_, err = s.mount.Switch(t.Context(), "g1")
		s.check(err)
		fmt.Fprintln(in)
		var all bytes.Buffer
		all.ReadFrom(out)
		s.check(cmd.Wait())
		if got, want := all.String(), "g0 d/e/f1\ng0 d/e/f0\ng1 d/e/f1\ng0 d/e/f2\ng1 top0\n"; got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	})
}

// All generations are below a hidden directory of the root, and only they. A path there stays in its
// generation.
func TestGenerationsDir(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode fs.Mode) {
		s := newGenerations(t, mode)
		if got := sh(t, `ls -A "$1"`, s.point); strings.Contains(got, metadata.GenerationsDir) {
			t.Errorf("the root lists %q", got)
		}
		if got := strings.Fields(sh(t, `ls -A "$1"/.generations`, s.point)); !slices.Equal(got, []string{"g0", "g1"}) {
			t.Errorf("the directory of the generations lists %q", got)
		}
		if _, err := trySh(`test -e "$1"/.generations/README`, s.point); err == nil {
			t.Error("a file beside the generations is visible")
		}
		for range 3 {
			for i, g := range []string{"g1", "g0"} {
				_, err := s.mount.Switch(t.Context(), g)
				s.check(err)
				sh(t, `diff -r "$1/$3" "$2" && diff -r "$1/g0" "$2/.generations/g0" && diff -r "$1/g1" "$2/.generations/g1"`, s.source, s.point, g)
				if got := sh(t, `ls "$1"`, s.point); strings.Contains(got, fmt.Sprintf("only-g%d", i)) {
					t.Errorf("in %s, the root lists %q", g, got)
				}
			}
		}
	})
}

// Inode numbers are small enough for 32-bit programs, also below the directory of the generations, where
// they are others. Listings have the same ones.
func TestGenerationInodes(t *testing.T) {
	t.Parallel()
	s := newGenerations(t, fs.Cached)
	list := func(dir string) []string {
		return strings.Fields(sh(t, `find "$1/$2" -printf '%i\n'; ls -iR "$1/$2" >/dev/null`, s.point, dir))
	}
	seen := make(map[string]bool)
	all := list(".")
	for _, g := range []string{"g0", "g1"} {
		all = append(all, list(".generations/"+g)...)
	}
	for _, inode := range all {
		if n, err := strconv.ParseUint(inode, 10, 64); err != nil || n >= 1<<32 || seen[inode] {
			t.Errorf("inode number %s, %v, seen before: %v", inode, err, seen[inode])
		}
		seen[inode] = true
	}
	if len(all) < 10 {
		t.Errorf("%d names", len(all))
	}
	sh(t, `cd "$1/.generations/g1"; ls -U -i -1 | while read inode name; do test "$inode" = "$(stat -c %i "$name")"; done`, s.point)
}

// The kernel forgets the files of a generation, except those that are open or mapped.
func TestForgetGeneration(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode fs.Mode) {
		s := newGenerations(t, mode)
		sh(t, `cat "$1"/top* "$1"/d/e/* "$1"/.generations/g0/top* >/dev/null`, s.point)
		h := holdBy(t, "mapped", s.in("d/e/f3"))
		before, err := s.mount.Switch(t.Context(), "g1")
		s.check(err)
		held := func() (names []string) {
			for e := range s.names.Held(before) {
				names = append(names, e.Path())
			}
			return names
		}
		if n := len(held()); n < 10 {
			t.Errorf("%d files are held before, want at least 10", n)
		}
		s.mount.Forget(before)
		s.eventually("the kernel has forgotten what is not open", func() bool { return len(held()) <= 1 })
		if got := held(); !slices.Equal(got, []string{"g0/d/e/f3"}) {
			t.Errorf("%q are held, want the mapped file", got)
		}
		h.close()
		s.mount.Forget(before)
		s.eventually("the kernel has forgotten all", func() bool { return len(held()) == 0 })
	})
}

// When the source has lost a generation, its entries are stale. The kernel forgets them, too, also those that it has
// got from a listing that was opened before.
func TestForgetGoneGeneration(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode fs.Mode) {
		s := newGenerations(t, mode)
		h := holdBy(t, "mapped", s.in("top3"))
		dir, err := os.Open(s.in("d/e"))
		s.check(err)
		defer dir.Close()
		before, err := s.mount.Switch(t.Context(), "g1")
		s.check(err)
		s.check(os.RemoveAll(filepath.Join(s.source, "g0")))
		s.names.Changed(before)
		if names, err := dir.ReadDir(-1); err != nil || len(names) != generationFiles {
			t.Errorf("the listing has %d names, %v; want %d", len(names), err, generationFiles)
		}
		held := func() (names []string) {
			for e := range s.names.Held(before) {
				names = append(names, e.Name())
			}
			return names
		}
		s.mount.Forget(before)
		s.eventually("the kernel has forgotten what is not open", func() bool { return slices.Equal(held(), []string{"top3"}) })
		h.close()
		s.eventually("the kernel has forgotten all", func() bool { return len(held()) == 0 })
	})
}

// A switch to what is not a generation changes nothing.
func TestSwitchFails(t *testing.T) {
	s := newGenerations(t, fs.Cached)
	for _, name := range []string{"missing", "README", "../x", "", "g1/d"} {
		if _, err := s.mount.Switch(context.Background(), name); err == nil {
			t.Errorf("switch to %q succeeded", name)
		}
	}
	sh(t, `diff -r "$1/g0" "$2"`, s.source, s.point)
}
