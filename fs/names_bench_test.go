package fs_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/tiers"
)

func init() { children["walk"] = timeWalk }

// timeWalk gets the size of every file below a folder with the system calls of find -size, and
// prints the duration in nanoseconds. args are the folder and the number of files.
func timeWalk(args []string) error {
	want, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	start := time.Now()
	files, err := walk(unix.AT_FDCWD, args[0], make([]byte, 32<<10))
	if err != nil {
		return err
	}
	if files != want {
		return fmt.Errorf("%s: %d files, want %d", args[0], files, want)
	}
	fmt.Println(time.Since(start).Nanoseconds())
	return nil
}

// walk returns the number of files below a folder, after an fstatat(2) of each.
func walk(at int, name string, buf []byte) (files int, err error) {
	fd, err := unix.Openat(at, name, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	var dirs []string
	for {
		n, err := unix.Getdents(fd, buf)
		if err != nil {
			return 0, err
		}
		if n == 0 {
			break
		}
		for b := buf[:n]; len(b) > 0; {
			d := (*unix.Dirent)(unsafe.Pointer(&b[0]))
			name := unix.ByteSliceToString(b[unsafe.Offsetof(d.Name):d.Reclen])
			b = b[d.Reclen:]
			var st unix.Stat_t
			if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
				return 0, err
			}
			if st.Mode&unix.S_IFMT != unix.S_IFDIR {
				files++
			} else if name != "." && name != ".." {
				dirs = append(dirs, name)
			}
		}
	}
	for _, dir := range dirs {
		n, err := walk(fd, dir, buf)
		if err != nil {
			return 0, err
		}
		files += n
	}
	return files, nil
}

// Finding files by size among 100,000 placed files, after a first run, against the folder of the
// tier.
func BenchmarkFind(b *testing.B) {
	dirs, files := drivertest.Size(100, 10), drivertest.Size(1000, 20)
	s := newStack(b, stackOptions{quotas: []tiers.Quota{bytesQuota(1 << 30)}, memory: true}, func(source string) {
		sh(b, `cd "$1" && for d in $(seq -w $2); do
			mkdir $d && (cd $d && seq -w $3 | split -l 1 -a 4 - img_)
		done`, source, strconv.Itoa(dirs), strconv.Itoa(files))
	})
	if _, err := trySh(`find "$1" -type f -print0 | xargs -0 cat >/dev/null`, s.point); err != nil {
		b.Fatal(err)
	}
	s.settled()
	native := filepath.Join(s.tierPath(1), "data", "files")
	if got := len(s.tierFiles(1)); got != dirs*files {
		b.Fatalf("%d files are placed, want %d", got, dirs*files)
	}
	find := func(folder string) float64 {
		start := time.Now()
		if out, err := exec.Command("find", folder, "-size", "+1M").CombinedOutput(); err != nil || len(out) > 0 {
			b.Fatalf("%v: %s", err, out)
		}
		return time.Since(start).Seconds()
	}
	calls := func(folder string) float64 {
		var nanos int64
		if _, err := fmt.Sscan(child(b, "walk", folder, strconv.Itoa(dirs*files)), &nanos); err != nil {
			b.Fatal(err)
		}
		return float64(nanos) / 1e9
	}
	for _, way := range []struct {
		name string
		time func(folder string) float64
	}{{"find", find}, {"calls", calls}} {
		b.Run(way.name, func(b *testing.B) {
			way.time(s.point)
			way.time(native)
			var ours, theirs []float64
			for b.Loop() {
				theirs = append(theirs, way.time(native))
				ours = append(ours, way.time(s.point))
			}
			compare(b, "milkweed", "native", ours, theirs)
		})
	}
}
