package fs_test

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/fs"
	"github.com/milkweedfs/milkweed/tiers"
)

func init() { children["hash"] = hashFile }

// hashFile prints the hash of a file.
func hashFile(args []string) error {
	data, err := os.ReadFile(args[0])
	fmt.Println(len(data), hash(data), err)
	return err
}

// A file whose attributes the source does not return fails alone: it is listed, and only calls
// that need its attributes get the error of the source. When the source recovers, so does the file.
func TestOneNameFails(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode fs.Mode) {
		s := newStack(t, stackOptions{mode: mode}, func(source string) {
			for i := range 100 {
				write(t, source, fmt.Sprintf("d/%02d", i), 1000, uint64(i))
			}
		})
		for _, op := range []drivertest.Op{drivertest.OpEntry, drivertest.OpStat, drivertest.OpOpen} {
			s.from.Add(drivertest.Rule{Op: op, Name: "d/42", Err: syscall.EIO})
		}
		const list = `find "$1" -type f | wc -l`
		for range 2 { // the second time, the kernel has cached the names
			if got := sh(t, list, s.in("d")); strings.TrimSpace(got) != "100" {
				t.Errorf("listed %s files, want 100", got)
			}
			out, err := trySh(`ls -l "$1" | grep -c ' 1000 '; stat "$1/42"`, s.in("d"))
			if err == nil || !strings.Contains(out, "99\n") || !strings.Contains(out, "Input/output error") {
				t.Errorf("ls -l and stat: got %v and\n%s", err, out)
			}
			if _, err := trySh(`cmp "$1/41" "$2/41"`, s.in("d"), s.source+"/d"); err != nil {
				t.Errorf("the file beside it: %v", err)
			}
		}
		s.from.Clear()
		s.epoch(1)
	})
}

// A file that ends before its size, as the files of sysfs do, is read as the source returns it, also
// after its size was requested again. It gets no copy.
func TestShortFile(t *testing.T) {
	t.Parallel()
	const source = "/sys/kernel/mm/transparent_hugepage"
	want, err := os.ReadFile(source + "/enabled")
	if err != nil {
		drivertest.Skipf(t, "needs sysfs: %v", err)
	}
	eachMode(t, func(t *testing.T, mode fs.Mode) {
		s := newStack(t, stackOptions{mode: mode, over: source, quotas: []tiers.Quota{bytesQuota(1 << 20)}, timeout: 100 * time.Millisecond}, nil)
		for range 3 {
			if got := sh(t, `cat "$1"`, s.in("enabled")); got != string(want) {
				t.Errorf("got %q, want %q", got, want)
			}
			time.Sleep(200 * time.Millisecond)
			if got := sh(t, `stat -c %s "$1"; cat "$1"`, s.in("enabled")); got != "4096\n"+string(want) {
				t.Errorf("with its size: got %q, want %q", got, want)
			}
		}
		s.settled()
		if files := s.tierFiles(1); len(files) > 0 {
			t.Errorf("copies: %q", files)
		}
	})
}

// The same holds for a file of several requests, whose replies may overtake each other, whether or not
// its end is at the end of a page. A read that begins after the end fails, unless the kernel knows
// the end.
func TestShortLargeFile(t *testing.T) {
	if testing.Short() {
		t.Skip("reads large files")
	}
	t.Parallel()
	eachMode(t, func(t *testing.T, mode fs.Mode) {
		contents := make(map[string][]byte)
		s := newStack(t, stackOptions{mode: mode, quotas: []tiers.Quota{bytesQuota(1 << 30)}}, func(source string) {
			for i := range 10 {
				name := fmt.Sprint(i)
				contents[name] = write(t, source, name, 5<<20, uint64(i))
			}
		})
		for name, data := range contents {
			end := 3<<20 + 100*int(data[0]%2)
			s.from.Add(drivertest.Rule{Op: drivertest.OpRead, Name: name, End: int64(end)})
			contents[name] = data[:end]
		}
		const after = `dd if="$1" bs=4096 skip=1000 status=none | wc -c`
		for name, data := range contents {
			if got := sh(t, after, s.in(name)); !strings.Contains(got, "Input/output error") {
				t.Errorf("after the end: got %q", got)
			}
			want := fmt.Sprintln(len(data), hash(data), nil)
			for range 3 {
				if got := child(t, "hash", s.in(name)); got != want {
					t.Errorf("got %s, want %s", got, want)
				}
				s.forgetPages()
			}
			if got := sh(t, after, s.in(name)); got != "0\n" {
				t.Errorf("after the end is known: got %q", got)
			}
		}
	})
}
