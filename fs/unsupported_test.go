package fs_test

import (
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/fs"
)

func init() {
	children["unsupported"] = unsupported
	children["handle"] = printHandle
	children["openhandle"] = openHandle
}

// System calls that FUSE does not support have the results that are documented.
func TestUnsupportedCalls(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode fs.Mode) {
		s := newStack(t, stackOptions{mode: mode, quotas: oneTier}, func(source string) { write(t, source, "f", 10_000, 1) })
		const want = `epoll_ctl <nil>, 1 ready
preadv2 operation not supported
FS_IOC_GETFLAGS inappropriate ioctl for device
birth time false
`
		for range 2 { // the second time from the page cache and the tier
			if got := child(t, "unsupported", s.in("f")); got != want {
				t.Errorf("got\n%swant\n%s", got, want)
			}
			s.settled()
		}
	})
}

// unsupported prints the results of system calls that a local file system supports, or refuses.
func unsupported(args []string) error {
	f, err := os.Open(args[0])
	if err != nil {
		return err
	}
	defer f.Close()
	fd := int(f.Fd())
	poll, err := unix.EpollCreate1(0)
	if err != nil {
		return err
	}
	err = unix.EpollCtl(poll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN})
	n, _ := unix.EpollWait(poll, make([]unix.EpollEvent, 1), 0)
	fmt.Printf("epoll_ctl %v, %d ready\n", err, n)
	buf := make([]byte, 10)
	if _, err := f.ReadAt(buf, 0); err != nil { // the page is cached
		return err
	}
	_, err = unix.Preadv2(fd, [][]byte{buf}, 0, unix.RWF_NOWAIT)
	fmt.Println("preadv2", err)
	_, err = unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	fmt.Println("FS_IOC_GETFLAGS", err)
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st); err != nil {
		return err
	}
	fmt.Println("birth time", st.Mask&unix.STATX_BTIME != 0)
	return nil
}

// A file handle works while the kernel has the file cached. In a later mount, in which another file
// has the number of the file, it fails with ESTALE.
func TestFileHandles(t *testing.T) {
	s := newStack(t, stackOptions{quotas: oneTier}, func(source string) {
		write(t, source, "a", 100, 1)
		write(t, source, "b", 200, 1)
	})
	inode := func(name string) string { return sh(t, `stat -c %i "$1"`, s.in(name)) }
	number := inode("a")
	lines := strings.SplitAfter(child(t, "handle", s.in("a")), "\n")
	if got, want := lines[1], "100 <nil>\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	s.restart()
	if got := inode("b"); got != number {
		t.Fatalf("b has the number %s, not that which a had, %s", got, number)
	}
	if got, want := child(t, "openhandle", append([]string{s.point}, strings.Fields(lines[0])...)...), "0 stale file handle\n"; got != want {
		t.Errorf("in a later mount: got %q, want %q", got, want)
	}
}

// printHandle prints the handle of a file, opens the file by it, and prints how much it reads.
func printHandle(args []string) error {
	handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, args[0], 0)
	if err != nil {
		return err
	}
	kind, bytes := strconv.Itoa(int(handle.Type())), hex.EncodeToString(handle.Bytes())
	fmt.Println(kind, bytes)
	return openHandle([]string{filepath.Dir(args[0]), kind, bytes})
}

// openHandle opens a file of a mount by its handle, and prints how much it reads.
func openHandle(args []string) error {
	root, err := os.Open(args[0])
	if err != nil {
		return err
	}
	defer root.Close()
	kind, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	bytes, err := hex.DecodeString(args[2])
	if err != nil {
		return err
	}
	n, fd := 0, -1
	fd, err = unix.OpenByHandleAt(int(root.Fd()), unix.NewFileHandle(int32(kind), bytes), unix.O_RDONLY)
	if err == nil {
		n, err = unix.Read(fd, make([]byte, 1000))
		unix.Close(fd)
	}
	fmt.Println(n, err)
	return nil
}
