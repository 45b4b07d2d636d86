package fs_test

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func init() {
	children["relist"] = relist
	children["part"] = listPart
	children["halt"] = listAndHalt
}

// listPart prints the first name of a folder and stops there.
func listPart(args []string) error {
	fd, err := unix.Open(args[0], unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	buf := make([]byte, 24)
	n, err := unix.Getdents(fd, buf)
	fmt.Print(strings.Join(direntNames(buf[:n]), " "))
	return err
}

// relist lists a folder repeatedly, a few names at a time and with pauses. Names that start with
// "stable" must be listed once each, and others at most once. args are the folder, the number of
// stable names, and the duration.
func relist(args []string) error {
	stable, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	d, err := time.ParseDuration(args[2])
	if err != nil {
		return err
	}
	for end := time.Now().Add(d); time.Now().Before(end); {
		if err := listOnce(args[0], stable, func() { time.Sleep(time.Millisecond) }); err != nil {
			return err
		}
	}
	return nil
}

// listAndHalt is relist for one listing, which after the first names waits for a line of standard
// input. args are the folder and the number of stable names.
func listAndHalt(args []string) error {
	stable, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	var once sync.Once
	return listOnce(args[0], stable, func() {
		once.Do(func() {
			fmt.Println("halted")
			bufio.NewReader(os.Stdin).ReadString('\n')
		})
	})
}

// listOnce lists a folder and calls pause after every few names. Names are as for relist.
func listOnce(folder string, stable int, pause func()) error {
	fd, err := unix.Open(folder, unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	seen := make(map[string]bool)
	buf := make([]byte, 2000)
	for {
		n, err := unix.Getdents(fd, buf)
		if err != nil {
			return fmt.Errorf("after %d names: %w", len(seen), err)
		}
		if n == 0 {
			break
		}
		for _, name := range direntNames(buf[:n]) {
			if seen[name] {
				return fmt.Errorf("%s is listed twice", name)
			}
			seen[name] = true
			if strings.HasPrefix(name, "stable") {
				stable--
			}
		}
		pause()
	}
	if stable != 0 {
		return fmt.Errorf("%d stable names were not listed", stable)
	}
	return nil
}

// direntNames returns the names in a buffer of getdents(2).
func direntNames(b []byte) []string {
	var names []string
	for len(b) > 0 {
		d := (*unix.Dirent)(unsafe.Pointer(&b[0]))
		name := b[unsafe.Offsetof(d.Name):d.Reclen]
		names = append(names, unix.ByteSliceToString(name))
		b = b[d.Reclen:]
	}
	return names
}

// While files are created and removed, a listing has every other name once, for any state of the
// cache of the kernel.
func TestListingsWhileNamesComeAndGo(t *testing.T) {
	if testing.Short() {
		t.Skip("lists while files change, for long")
	}
	t.Parallel()
	const stable = 1000
	s := newStack(t, stackOptions{timeout: 20 * time.Millisecond}, func(source string) {
		for i := range stable {
			write(t, source, fmt.Sprintf("d/stable-%04d", i), 0, 1)
		}
	})
	var listers sync.WaitGroup
	for range 4 {
		listers.Go(func() { child(t, "relist", s.in("d"), strconv.Itoa(stable), "2s") })
	}
	listed := make(chan struct{})
	go func() {
		defer close(listed)
		listers.Wait()
	}()
	for i := 0; ; i++ {
		select {
		case <-listed:
			return
		case <-time.After(5 * time.Millisecond):
		}
		for j := range 5 {
			name := filepath.Join(s.source, "d", fmt.Sprintf("%c-comes%04d", "atz"[j%3], (i*7+j)*13%stable))
			if os.Remove(name) != nil {
				s.check(os.WriteFile(name, nil, 0o644))
			}
		}
	}
}

// A listing that began before files were created or removed continues correctly in a later listing
// that the kernel has cached.
func TestListingGoesOnInALaterOne(t *testing.T) {
	t.Parallel()
	const stable = 1000
	s := newStack(t, stackOptions{timeout: 100 * time.Millisecond}, func(source string) {
		for i := range stable {
			write(t, source, fmt.Sprintf("d/stable%04d", i), 0, 1)
			write(t, source, fmt.Sprintf("d/goes%04d", i), 0, 1)
		}
	})
	for _, change := range []string{`rm "$1"/goes*`, `cd "$1" && touch arrives0 arrives1 arrives2`} {
		sh(t, `ls "$1" && ls "$1"`, s.in("d")) // the kernel caches the listing
		cmd := childCommand("halt", s.in("d"), strconv.Itoa(stable))
		in, err := cmd.StdinPipe()
		s.check(err)
		out, err := cmd.StdoutPipe()
		s.check(err)
		cmd.Stderr = os.Stderr
		s.check(cmd.Start())
		if line, err := bufio.NewReader(out).ReadString('\n'); line != "halted\n" {
			t.Errorf("got %q, %v", line, err)
		}
		sh(t, change, filepath.Join(s.source, "d"))
		time.Sleep(200 * time.Millisecond)
		sh(t, `ls "$1" && ls "$1"`, s.in("d"))
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("after %s: %v", change, err)
		}
	}
}

// A directory that the kernel has cached is read again after the TTL if its names have changed,
// even if its modification time has not.
func TestChangedDirectoryIsListedAgain(t *testing.T) {
	t.Parallel()
	s := newStack(t, stackOptions{timeout: 200 * time.Millisecond}, func(source string) {
		write(t, source, "d/a", 1, 1)
		write(t, source, "d/b", 1, 1)
	})
	list := func(want string) {
		t.Helper()
		if got := strings.Join(strings.Fields(sh(t, `ls "$1"`, s.in("d"))), " "); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	dir := filepath.Join(s.source, "d")
	info, err := os.Stat(dir)
	s.check(err)
	change := func(f func() error) {
		t.Helper()
		s.check(f())
		s.check(os.Chtimes(dir, time.Time{}, info.ModTime()))
		time.Sleep(300 * time.Millisecond)
	}
	list("a b")
	list("a b")
	change(func() error { return os.Remove(filepath.Join(dir, "a")) })
	list("b")
	list("b")
	change(func() error { return os.WriteFile(filepath.Join(dir, "c"), nil, 0o644) })
	list("b c")
	child(t, "part", s.in("d"))
	change(func() error { return os.Rename(filepath.Join(dir, "c"), filepath.Join(dir, "d")) })
	list("b d")
}
