package fs_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/fs"
)

// A file whose attributes the source does not return fails alone: it is listed, and only calls
// that need its attributes get the error of the source. When the source recovers, so does the file.
func TestOneNameFails(t *testing.T) {
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
