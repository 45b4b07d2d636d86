package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

const readers = "testdata/readers.py"

// needReaders is need for the requirements of readers.py.
func needReaders(t *testing.T) {
	t.Helper()
	drivertest.Need(t, "root", "/dev/fuse", python, "python3-numpy", "python3-h5py", "python3-torch", "python3-PIL")
}

// methods lists the methods of readers.py.
func (s *site) methods() []string {
	s.t.Helper()
	var names []string
	for line := range strings.Lines(s.script(readers, "list")) {
		names = append(names, strings.Fields(line)[0])
	}
	return names
}

// readAtOnce runs readers.py in two processes at the same time, in different orders.
func (s *site) readAtOnce(methods string) {
	s.t.Helper()
	var jobs sync.WaitGroup
	for seed := range 2 {
		jobs.Go(func() {
			out, err := s.command(python, "-B", readers, methods, s.source, s.point, "--seed", strconv.Itoa(seed)).CombinedOutput()
			if err != nil {
				s.t.Errorf("seed %d: %v\n%s", seed, err, out)
			}
		})
	}
	jobs.Wait()
}

// A program reads the bytes of the source while they are placed, with each method of readers.py.
// First, each method reads with empty tiers, of which the first has room for a part of the
// dataset. Then two jobs run all methods at the same time.
func TestReadersWhilePlacing(t *testing.T) {
	if testing.Short() {
		t.Skip("compares with local file systems at length")
	}
	needReaders(t)
	s := newSite(t)
	s.script(readers, "make", s.source, "--small", "60", "--large", "1", "--large-mib", "6", "--special")
	quotas := []string{"8MiB", "1GiB"}
	for _, method := range s.methods() {
		s.mountWith("xattrs", quotas...)
		if out := s.run(python, "-B", readers, method, s.source, s.point); out.code != 0 {
			t.Errorf("%s%s", out.stdout, out.stderr)
		}
		if opens := s.status().Source.Opens; opens == 0 && method != "tree" {
			t.Errorf("%s: all files were in the tiers already", method)
		}
		s.umount()
		s.wantNothing()
		s.emptyTiers()
	}
	s.mountWith("xattrs", quotas...)
	s.readAtOnce("all")
	s.umount()
	s.wantNothing()
}

const trainer = "../../examples/pytorch/train.py"

// train trains on a directory, and returns the loss of each step.
func (s *site) train(folder string, flags ...string) string {
	s.t.Helper()
	file := filepath.Join(s.dir, "losses")
	s.script(trainer, append(flags, folder, "--losses", file)...)
	losses, err := os.ReadFile(file)
	s.check(err)
	if len(losses) == 0 {
		s.t.Error("no losses")
	}
	return string(losses)
}

// An unchanged training script computes the same losses on a mount as on the source, to the last
// bit, both while the data are placed, with a plan, and afterwards.
func TestPyTorchLosses(t *testing.T) {
	if testing.Short() {
		t.Skip("runs programs that take long")
	}
	drivertest.Need(t, "root", "/dev/fuse", python, "python3-torch", "python3-torchvision", "python3-sklearn")
	s := newSite(t)
	s.script("../../examples/pytorch/make_digits.py", s.source)
	direct := s.train(s.source)
	s.mount("1MiB", "64MiB")
	if s.train(s.point, "--plan") != direct {
		t.Error("the losses differ while the data are placed")
	}
	s.settled()
	// A new mount, so that the page cache has nothing of it.
	s.umount()
	s.mount("1MiB", "64MiB")
	if s.train(s.point) != direct {
		t.Error("the losses differ when the data are placed")
	}
	if got := s.status().Source; got.Opens != 0 || got.Bytes != 0 {
		t.Errorf("all data are in the tiers, but the source was opened %d times, and %d bytes were read", got.Opens, got.Bytes)
	}
	s.umount()
	s.wantNothing()
}

// A DataLoader that hands over its order reads the right bytes, and the mount predicts what the
// workers open. When the job has ended, the plan is gone.
func TestPyTorchPlan(t *testing.T) {
	if testing.Short() {
		t.Skip("counts the opens of a job in real time")
	}
	drivertest.Need(t, "root", "/dev/fuse", python, "python3-torch")
	s := newSite(t)
	const files = 300
	for i := range files {
		s.write(fmt.Sprintf("%d/%d", i%3, i), 10_000+i)
	}
	s.mount("64MiB")
	s.script("testdata/planned.py", s.source, s.point)
	var plan struct {
		Opens, Correct, Rejected, Missing int64
		Streams                           []any
	}
	s.check(json.Unmarshal([]byte(s.get("/v1/plan")), &plan))
	if len(plan.Streams) != 0 || plan.Rejected != 0 || plan.Missing != 0 {
		t.Errorf("plan: %+v, want no stream, no rejected path and no missing file", plan)
	}
	// Files that the workers open before the plan arrives are not counted.
	if plan.Opens < files/2 || plan.Correct != plan.Opens {
		t.Errorf("the plan predicted %d of %d opens, want all, and at least %d", plan.Correct, plan.Opens, files/2)
	}
	s.umount()
	s.wantNothing()
}

// TestPFS repeats tests on a distributed file system. MILKWEED_TEST_PFS is a directory of it.
// `make check-pfs` starts a MooseFS, whose modification times have whole seconds.
func TestPFS(t *testing.T) {
	parallel(t)
	pfs := os.Getenv("MILKWEED_TEST_PFS")
	if pfs == "" {
		t.Skip("MILKWEED_TEST_PFS is not set; see `make check-pfs`")
	}
	needReaders(t)
	drivertest.Need(t, "python3-torchvision", "python3-sklearn")
	folder, err := os.MkdirTemp(pfs, "milkweed-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(folder); err != nil {
			t.Error(err)
		}
	})
	quotas := []string{"8MiB", "1GiB"}

	t.Run("Readers", func(t *testing.T) {
		s := newSite(t)
		s.source = filepath.Join(folder, "readers")
		s.script(readers, "make", s.source, "--small", "60", "--large", "1", "--large-mib", "20", "--special")
		time.Sleep(2 * time.Second) // until no file is racy: the times are whole seconds
		s.mountWith("xattrs", quotas...)
		s.readAtOnce("all")
		first := s.settled()
		if held, want := first.Source.Bytes, first.Placement.PlacedBytes; held != want {
			t.Errorf("source bytes: got %d, want %d, the bytes placed", held, want)
		}
		// The next mount uses the copies.
		s.umount()
		s.mountWith("xattrs", quotas...)
		s.script(readers, "read,tree", s.source, s.point)
		if got := s.settled().Source; got.Opens != 0 || got.Bytes != 0 {
			t.Errorf("after the restart the source was opened %d times, and %d bytes were read", got.Opens, got.Bytes)
		}
		s.umount()
		s.wantNothing()
	})
	t.Run("PyTorch", func(t *testing.T) {
		s := newSite(t)
		s.source = filepath.Join(folder, "digits")
		s.script("../../examples/pytorch/make_digits.py", s.source)
		direct := s.train(s.source)
		s.mount(quotas...)
		if s.train(s.point) != direct {
			t.Error("the losses differ")
		}
		s.umount()
		s.wantNothing()
	})
	t.Run("Rewritten", func(t *testing.T) {
		for _, mode := range []string{"passthrough", "stateless", "cached"} {
			t.Run(mode, func(t *testing.T) { rewritten(t, filepath.Join(folder, "rewritten-"+mode), mode) })
		}
	})
}

// rewritten rewrites files in place, within the second in which they were written and read, so
// that their sizes and times stay. The mount shows the last content when the second is over, and
// so does the next mount. The clock of the metadata server stands still while it serves requests: a
// write that is served in the next second may still get the time of the last one.
func rewritten(t *testing.T, source, mode string) {
	s := newSite(t)
	s.source = source
	s.check(os.Mkdir(source, 0o755))
	s.mountWith("mode="+mode+",attr_timeout=1s,clock_skew=1s", "64MiB", "1GiB")
	out := s.sh(`cd "$1" && same=0
		fill() { head -c "$1" /dev/zero | tr '\0' "$2"; }
		for i in $(seq 20); do
			for size in 5000 3000000; do
				f=f$i-$size
				fill $size a >$f && before=$(stat -c %y "$f") && cat "$2/$f" >/dev/null
				fill $size b | dd of=$f conv=notrunc bs=1M status=none
				test "$(stat -c %y "$f")" = "$before" && same=$((same + 1))
				cat "$2/$f" >/dev/null 2>&1 || true
			done
		done
		echo $same`, s.source, s.point)
	if strings.TrimSpace(out) == "0" {
		t.Error("no file kept its times")
	}
	for range 2 {
		time.Sleep(5 * time.Second)
		s.sh(`for f in "$1"/*; do cmp "$f" "$2/${f##*/}" || exit 1; done`, s.source, s.point)
		s.settled()
		s.sh(`for f in "$1"/*; do cmp "$f" "$2/${f##*/}" || exit 1; done`, s.source, s.point)
		s.umount()
		s.mountWith("mode="+mode, "64MiB", "1GiB")
	}
	s.umount()
	s.wantNothing()
}
