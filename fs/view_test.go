package fs_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/fs"
	"github.com/milkweedfs/milkweed/tiers"
)

// The tests in this file are about the view of the source that a job has.

var oneTier = []tiers.Quota{bytesQuota(1 << 30)}

// Attributes are those of the source: types, modes, owners, times, sizes, links. Hard links are
// files of their own.
func TestAttributes(t *testing.T) {
	s := newStack(t, stackOptions{quotas: oneTier}, func(source string) {
		write(t, source, "plain", 1234, 1)
		write(t, source, "empty", 0, 1)
		write(t, source, "d/e/f", 1, 1)
		sh(t, `cd "$1" && mkdir nothing && ln plain second && ln -s plain link && ln -s /no/where dangling && mkfifo -m 640 fifo
			chmod 0 empty && chmod 4755 plain && chmod 1777 d && chown 12:34 d/e/f && chown -h 56:78 link
			touch -d '1969-12-31 23:59:58.5 UTC' d/e/f && touch -h -d '2038-01-19 03:14:08.123456789 UTC' link && touch -d '2001-02-03 04:05:06.000000001 UTC' plain`, source)
	})
	const list = `cd "$1" && find . -mindepth 1 -printf '%p %y %m %U %G %s %T@ %C@ %l ' \( -type d -printf '%n\n' -o -printf '\n' \) | sort`
	if got, want := sh(t, list, s.point), sh(t, list, s.source); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := sh(t, `cd "$1" && stat -c %h plain second`, s.point); got != "1\n1\n" {
		t.Errorf("link counts of two links of one file: %q, want 1", got)
	}
	s.epoch(1) // copies do not change the attributes
	s.settled()
	if got, want := sh(t, list, s.point), sh(t, list, s.source); got != want {
		t.Errorf("after placing, got\n%s\nwant\n%s", got, want)
	}
}

// Every name that a file can have is visible, and its file is placed.
func TestNames(t *testing.T) {
	names := []string{
		"plain", "with space", "new\nline", "tab\t", `back\slash`, "quote'\"", "-rf", "*", "...", ".hidden", "ünïcödé", "not \xff\xfe UTF-8",
		strings.Repeat("x", 255), "folder \xf0/" + strings.Repeat("\xff", 255) + "/f", "incoming", "files", "milkweed.json",
	}
	s := newStack(t, stackOptions{quotas: oneTier}, func(source string) {
		for i, name := range names {
			write(t, source, name, 100+i, uint64(i))
		}
	})
	s.epoch(1)
	s.settled()
	s.epoch(2)
	if got, want := int(s.handler.Stats().Placed), len(names); got != want {
		t.Errorf("files placed: got %d, want %d", got, want)
	}
	if out, err := trySh(`cat "$1"`, s.in(strings.Repeat("x", 256))); err == nil || !strings.Contains(out, "too long") {
		t.Errorf("name of 256 bytes: got %v, %s; want ENAMETOOLONG", err, out)
	}
}

// A path may be longer than PATH_MAX.
func TestDeepPath(t *testing.T) {
	const depth = 40
	elem := strings.Repeat("d", 200)
	s := newStack(t, stackOptions{quotas: oneTier}, func(source string) {
		fd, err := unix.Open(source, unix.O_DIRECTORY, 0)
		if err != nil {
			t.Fatal(err)
		}
		for range depth {
			if err := unix.Mkdirat(fd, elem, 0o755); err != nil {
				t.Fatal(err)
			}
			next, err := unix.Openat(fd, elem, unix.O_DIRECTORY, 0)
			if err != nil {
				t.Fatal(err)
			}
			unix.Close(fd)
			fd = next
		}
		f, err := unix.Openat(fd, "f", unix.O_CREAT|unix.O_WRONLY, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		unix.Write(f, []byte("deep"))
		unix.Close(f)
		unix.Close(fd)
	})
	for range 2 {
		if got := child(t, "descend", s.point, elem, strconv.Itoa(depth)); got != "deep" {
			t.Errorf("got %q, want the content of the file", got)
		}
		s.settled()
	}
}

// descend opens a chain of nested folders and prints the file f in the last one. args are the first
// folder, the name of the others and their number.
func descend(args []string) error {
	fd, err := unix.Open(args[0], unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	depth, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	for i := range depth {
		if fd, err = unix.Openat(fd, args[1], unix.O_DIRECTORY, 0); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	if fd, err = unix.Openat(fd, "f", unix.O_RDONLY, 0); err != nil {
		return err
	}
	_, err = io.Copy(os.Stdout, os.NewFile(uintptr(fd), "f"))
	return err
}

// Special files are visible. The kernel opens them without a round trip: a pipe connects the
// readers of the mount, a socket has no server, and devices are refused because the mount is
// nodev.
func TestSpecialFiles(t *testing.T) {
	s := newStack(t, stackOptions{quotas: oneTier}, func(source string) {
		for name, mode := range map[string]uint32{"fifo": unix.S_IFIFO, "socket": unix.S_IFSOCK, "device": unix.S_IFCHR} {
			err := unix.Mknod(filepath.Join(source, name), mode|0o666, int(unix.Mkdev(1, 3)))
			if err == unix.EPERM {
				drivertest.Skipf(t, "may not make a device")
			} else if err != nil {
				t.Fatal(err)
			}
		}
	})
	if got, want := child(t, "specials", s.point), "fifo ok\nsocket no such device or address\ndevice permission denied\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got := s.from.Count(drivertest.OpOpen); got != 0 {
		t.Errorf("opens of the source: got %d, want 0", got)
	}
}

// specials opens special files with O_NONBLOCK.
func specials(args []string) error {
	for _, name := range []string{"fifo", "socket", "device"} {
		_, err := unix.Open(filepath.Join(args[0], name), unix.O_RDONLY|unix.O_NONBLOCK, 0)
		if err == nil {
			fmt.Println(name, "ok")
		} else {
			fmt.Println(name, err)
		}
	}
	return nil
}

// Extended attributes in the namespace "user." are those of the source. Others are not visible.
func TestXattrs(t *testing.T) {
	long := strings.Repeat("v", 2000)
	s := newStack(t, stackOptions{quotas: oneTier, xattrs: true}, func(source string) {
		write(t, source, "f", 10, 1)
		write(t, source, "none", 10, 1)
		for name, value := range map[string]string{"user.a": "1", "user.empty": "", "user.long": long, "trusted.t": "secret"} {
			err := unix.Setxattr(filepath.Join(source, "f"), name, []byte(value), 0)
			if err == unix.ENOTSUP || err == unix.EPERM {
				drivertest.Skipf(t, "no extended attributes where the source is")
			} else if err != nil {
				t.Fatal(err)
			}
		}
	})
	want := "f user.a user.empty user.long\nuser.a 1\nuser.empty \nuser.long " + long + "\n" +
		"room for half: numerical result out of range\nuser.b: no data available\ntrusted.t: no data available\n" +
		"security.s: no data available\nsystem.posix_acl_access: no data available\nunknown.u: operation not supported\nnone \n"
	if got := child(t, "xattrs", s.in("f"), s.in("none")); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// readXattrs prints the extended attributes of two files.
func readXattrs(args []string) error {
	list := func(path string) ([]string, error) {
		n, err := unix.Listxattr(path, nil)
		if err != nil {
			return nil, err
		}
		buf := make([]byte, n)
		if n, err = unix.Listxattr(path, buf); err != nil {
			return nil, err
		}
		names := strings.FieldsFunc(string(buf[:n]), func(r rune) bool { return r == 0 })
		slices.Sort(names)
		return names, nil
	}
	names, err := list(args[0])
	if err != nil {
		return err
	}
	fmt.Println(filepath.Base(args[0]), strings.Join(names, " "))
	for _, name := range names {
		n, err := unix.Getxattr(args[0], name, nil)
		if err != nil {
			return err
		}
		buf := make([]byte, n)
		if n, err = unix.Getxattr(args[0], name, buf); err != nil {
			return err
		}
		fmt.Println(name, string(buf[:n]))
	}
	_, err = unix.Getxattr(args[0], "user.long", make([]byte, 1000))
	fmt.Println("room for half:", err)
	for _, name := range []string{"user.b", "trusted.t", "security.s", "system.posix_acl_access", "unknown.u"} {
		_, err = unix.Getxattr(args[0], name, make([]byte, 1000))
		fmt.Printf("%s: %v\n", name, err)
	}
	names, err = list(args[1])
	fmt.Println(filepath.Base(args[1]), strings.Join(names, " "))
	return err
}

// The size of the file system is that of the source. An error of the source is reported.
func TestStatfs(t *testing.T) {
	s := newStack(t, stackOptions{}, func(source string) {})
	var want unix.Statfs_t
	s.check(unix.Statfs(s.source, &want))
	total := int64(want.Blocks) * int64(want.Bsize)
	if got := child(t, "statfs", s.point); got != fmt.Sprintf("%d %d\n", total, want.Files) {
		t.Errorf("got %s, want %d %d", got, total, want.Files)
	}
	remove := s.from.Add(drivertest.Rule{Op: drivertest.OpStatfs, Err: syscall.EIO})
	if got, want := child(t, "statfs", s.point), "input/output error\n"; got != want {
		t.Errorf("while the source fails: got %s, want %s", got, want)
	}
	remove()
	s.from.Add(drivertest.Rule{Op: drivertest.OpStatfs, Err: syscall.ENOTSUP})
	if got, want := child(t, "statfs", s.point), "0 0\n"; got != want {
		t.Errorf("of a source without a size: got %s, want %s", got, want)
	}
}

// readStatfs prints the size of a file system and its number of files.
func readStatfs(args []string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(args[0], &st); err != nil {
		fmt.Println(err)
		return nil
	}
	fmt.Println(int64(st.Blocks)*int64(st.Bsize), st.Files)
	return nil
}

// All ways to read a file return the same content.
func TestWaysToRead(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode fs.Mode) {
		for _, size := range []int{1, 4095, 4096, 3<<20 + 77} {
			t.Run(strconv.Itoa(size), func(t *testing.T) {
				s := newStack(t, stackOptions{mode: mode, quotas: oneTier}, func(source string) { write(t, source, "f", size, 1) })
				for range 2 { // during the fill, and from the tier
					child(t, "ways", s.in("f"), filepath.Join(s.source, "f"), t.TempDir())
					s.settled()
					s.forgetPages()
				}
			})
		}
	})
}

// readWays reads a file in many ways and compares it with another.
func readWays(args []string) error {
	path, dir := args[0], args[2]
	want, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	ways := map[string]func(f *os.File) ([]byte, error){
		"O_DIRECT": func(*os.File) ([]byte, error) {
			f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECT, 0)
			if err != nil {
				return nil, err
			}
			defer f.Close()
			// Memory and length are whole pages, which the file system of the tier may
			// require in passthrough.
			pages := (len(want) + os.Getpagesize() - 1) &^ (os.Getpagesize() - 1)
			buf, err := unix.Mmap(-1, 0, pages, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
			if err != nil {
				return nil, err
			}
			defer unix.Munmap(buf)
			n, err := f.ReadAt(buf, 0)
			if err == io.EOF {
				err = nil
			}
			return bytes.Clone(buf[:n]), err
		},
		"mmap": func(f *os.File) ([]byte, error) {
			data, err := unix.Mmap(int(f.Fd()), 0, len(want), unix.PROT_READ, unix.MAP_SHARED)
			if err != nil {
				return nil, err
			}
			defer unix.Munmap(data)
			return bytes.Clone(data), nil
		},
		"sendfile": func(f *os.File) ([]byte, error) {
			return copied(dir, want, func(out *os.File) (int, error) { return unix.Sendfile(int(out.Fd()), int(f.Fd()), nil, len(want)) })
		},
		"copy_file_range": func(f *os.File) ([]byte, error) {
			return copied(dir, want, func(out *os.File) (int, error) {
				n, err := unix.CopyFileRange(int(f.Fd()), nil, int(out.Fd()), nil, len(want), 0)
				if err == unix.EXDEV { // not supported by old kernels
					n, err = unix.Sendfile(int(out.Fd()), int(f.Fd()), nil, len(want))
				}
				return n, err
			})
		},
		"single bytes": func(f *os.File) ([]byte, error) {
			return slices.Concat(want[:max(len(want)-10, 0)], readBytes(f, max(len(want)-10, 0), len(want))), nil
		},
		"past the end": func(f *os.File) ([]byte, error) {
			if n, err := f.ReadAt(make([]byte, 10), int64(len(want))); n != 0 || err != io.EOF {
				return nil, fmt.Errorf("got %d, %v; want 0, EOF", n, err)
			}
			end, err := f.Seek(0, unix.SEEK_HOLE) // all files end in a hole
			if err != nil || end != int64(len(want)) {
				return nil, fmt.Errorf("hole at %d, %v; want %d", end, err, len(want))
			}
			return want, nil
		},
	}
	for name, read := range ways {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		got, err := read(f)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("%s: wrong bytes", name)
		}
		f.Close()
	}
	return nil
}

// copied calls copy until it has written as many bytes as want has, and returns them.
func copied(dir string, want []byte, copy func(*os.File) (int, error)) ([]byte, error) {
	out, err := os.CreateTemp(dir, "")
	if err != nil {
		return nil, err
	}
	defer out.Close()
	for n := 0; n < len(want); {
		k, err := copy(out)
		if err != nil || k == 0 {
			return nil, fmt.Errorf("%d bytes, %w", n, err)
		}
		n += k
	}
	return os.ReadFile(out.Name())
}

// readBytes reads a range of a file one byte at a time.
func readBytes(f *os.File, from, to int) []byte {
	var got []byte
	for ; from < to; from++ {
		b := make([]byte, 1)
		f.ReadAt(b, int64(from))
		got = append(got, b...)
	}
	return got
}

// A large folder is listed completely, by several readers at once, and from every offset to which
// a reader seeks.
func TestLargeFolder(t *testing.T) {
	if testing.Short() {
		t.Skip("lists a large directory")
	}
	t.Parallel()
	const files = 20_000
	s := newStack(t, stackOptions{timeout: 100 * time.Millisecond}, func(source string) {
		dir := filepath.Join(source, "large")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for i := range files {
			if err := os.WriteFile(filepath.Join(dir, "file-with-a-name-"+strconv.Itoa(i)), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	})
	var readers sync.WaitGroup
	for range 3 {
		readers.Go(func() { child(t, "list", s.in("large"), strconv.Itoa(files)) })
	}
	readers.Wait()
	if got, want := sh(t, `ls -la "$1" | wc -l`, s.in("large")), fmt.Sprintln(files+3); got != want {
		t.Errorf("lines of ls -la: got %s, want %s", got, want)
	}
	sh(t, `cd "$1" && touch new && rm file-with-a-name-1`, filepath.Join(s.source, "large"))
	time.Sleep(300 * time.Millisecond)
	if got, want := sh(t, `cd "$1" && ls new && ls | wc -l`, s.in("large")), fmt.Sprintf("new\n%d\n", files); got != want {
		t.Errorf("after a change: got %q, want %q", got, want)
	}
}

// A listed is a name that getdents(2) returned, with the offset after it.
type listed struct {
	name string
	ino  uint64
	off  int64
}

// getdents lists a folder from the current offset.
func getdents(fd int) ([]listed, error) {
	var all []listed
	buf := make([]byte, 32<<10)
	for {
		n, err := unix.Getdents(fd, buf)
		if err != nil || n == 0 {
			return all, err
		}
		for b := buf[:n]; len(b) > 0; {
			d := (*unix.Dirent)(unsafe.Pointer(&b[0]))
			name := b[unsafe.Offsetof(d.Name):d.Reclen]
			all = append(all, listed{string(name[:bytes.IndexByte(name, 0)]), d.Ino, d.Off})
			b = b[d.Reclen:]
		}
	}
}

// listFolder lists a folder, and again from earlier offsets. args are the folder and its number of
// files.
func listFolder(args []string) error {
	files, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	fd, err := unix.Open(args[0], unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	all, err := getdents(fd)
	if err != nil {
		return err
	}
	names := make(map[string]bool)
	for _, d := range all {
		names[d.name] = true
	}
	if len(all) != files+2 || len(names) != files+2 || all[0].name != "." || all[1].name != ".." {
		return fmt.Errorf("listed %d names, %d different, want %d", len(all), len(names), files+2)
	}
	var self, parent unix.Stat_t
	if err := errors.Join(unix.Fstat(fd, &self), unix.Stat(filepath.Dir(args[0]), &parent)); err != nil {
		return err
	}
	if all[0].ino != self.Ino || all[1].ino != parent.Ino {
		return fmt.Errorf(`inodes of "." and "..": got %d and %d, want %d and %d`, all[0].ino, all[1].ino, self.Ino, parent.Ino)
	}
	for _, i := range []int{0, 1, 2, files / 2, files, files + 1} {
		if _, err := unix.Seek(fd, all[i].off, io.SeekStart); err != nil {
			return err
		}
		rest, err := getdents(fd)
		if err != nil {
			return err
		}
		if !slices.Equal(rest, all[i+1:]) {
			return fmt.Errorf("listing from %q on: got %d names, want %d", all[i].name, len(rest), len(all)-i-1)
		}
	}
	return nil
}

// The kernel looks a name that did not exist up again after the negative TTL.
func TestNewName(t *testing.T) {
	t.Parallel()
	s := newStack(t, stackOptions{timeout: 200 * time.Millisecond}, func(source string) {})
	if out, err := trySh(`cat "$1"`, s.in("f")); err == nil || !strings.Contains(out, "No such file") {
		t.Errorf("got %v, %s; want ENOENT", err, out)
	}
	write(t, s.source, "f", 10, 1)
	time.Sleep(600 * time.Millisecond)
	sh(t, `cmp "$1" "$2"`, s.in("f"), filepath.Join(s.source, "f"))
}

// A name that is too long for a file is reported as such, as by other file systems.
func TestLongName(t *testing.T) {
	s := newStack(t, stackOptions{timeout: time.Hour}, func(source string) { write(t, source, "f", 10, 1) })
	sh(t, `ls "$1"`, s.in("."))
	for length, want := range map[int]string{255: "No such file", 256: "File name too long", 1000: "File name too long"} {
		if out, err := trySh(`cat "$1"`, s.in(strings.Repeat("x", length))); err == nil || !strings.Contains(out, want) {
			t.Errorf("%d bytes: got %v, %s; want %s", length, err, out, want)
		}
	}
}

// The next open returns the new version of a file that was replaced, also within the TTL: the
// daemon notices the change when it opens the source, and the kernel looks the name up again. In a
// stateless mount the first read notices it, and fails.
func TestReplacedWithinTimeout(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode fs.Mode) {
		s := newStack(t, stackOptions{mode: mode, quotas: oneTier, timeout: time.Hour}, func(source string) { write(t, source, "d/f", 1000, 1) })
		sh(t, `stat "$1" && ls -l "$2"`, s.in("d/f"), s.in("d"))
		write(t, s.source, "d/new", 1001, 2)
		sh(t, `mv "$1"/d/new "$1"/d/f`, s.source)
		if mode == fs.Stateless {
			if out, err := trySh(`cat "$1"`, s.in("d/f")); err == nil || !strings.Contains(out, "Stale file handle") {
				t.Errorf("first read: got %v, %q; want ESTALE", err, out)
			}
			s.eventually("the kernel looks the name up again", func() bool {
				_, err := trySh(`cat "$1"`, s.in("d/f"))
				return err == nil
			})
		}
		sh(t, `cmp "$1" "$2"`, s.in("d/f"), filepath.Join(s.source, "d/f"))
	})
}

// Entries of old versions are dropped when the kernel has forgotten them.
func TestOldVersionsAreForgotten(t *testing.T) {
	t.Parallel()
	s := newStack(t, stackOptions{timeout: 100 * time.Millisecond}, func(source string) {
		for i := range 50 {
			write(t, source, fmt.Sprint("f", i), 10, 1)
		}
	})
	for i := range 5 {
		sh(t, `ls -l "$1" && cat "$1"/* | wc -c`, s.point)
		for j := range 50 {
			write(t, s.source, fmt.Sprint("f", j), 11+i, uint64(i))
		}
		time.Sleep(300 * time.Millisecond)
	}
	sh(t, `ls -l "$1" && cat "$1"/* | wc -c`, s.point)
	s.eventually("old entries are dropped", func() bool { return s.names.Len() <= 51 })
}
