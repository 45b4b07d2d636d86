package fs_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/fs"
	"github.com/milkweedfs/milkweed/metadata"
	"github.com/milkweedfs/milkweed/tiers"
)

func init() { children["rewind"] = listTwice }

// listTwice lists a folder through one handle, and again after a line of standard input, when it
// prints the names.
func listTwice(args []string) error {
	fd, err := unix.Open(args[0], unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if _, err := getdents(fd); err != nil {
		return err
	}
	fmt.Println("open")
	bufio.NewReader(os.Stdin).ReadString('\n')
	if _, err := unix.Seek(fd, 0, io.SeekStart); err != nil {
		return err
	}
	all, err := getdents(fd)
	for _, d := range all {
		fmt.Print(d.name, " ")
	}
	fmt.Println()
	return err
}

// refresh revalidates paths and returns what has changed, such as "added d/f".
func (s *stack) refresh(paths ...string) string {
	s.t.Helper()
	var found []string
	s.check(s.names.Revalidate(s.t.Context(), paths, func(f metadata.Finding) {
		switch {
		case f.Err != nil:
			found = append(found, "failed "+f.Path)
		case f.Change != metadata.Unchanged:
			found = append(found, f.Change.String()+" "+f.Path)
		}
	}))
	slices.Sort(found)
	return strings.Join(found, ", ")
}

// eachPlace runs a test in each mode, with a tier for the files and without one. Without a tier
// the daemon keeps the files of the source open (the idle-handle cache).
func eachPlace(t *testing.T, test func(t *testing.T, opts stackOptions)) {
	eachMode(t, func(t *testing.T, mode fs.Mode) {
		for place, quotas := range map[string][]tiers.Quota{"tier": oneTier, "source": nil} {
			t.Run(place, func(t *testing.T) {
				t.Parallel()
				test(t, stackOptions{mode: mode, quotas: quotas})
			})
		}
	})
}

// changed makes the dataset of the tests below, has the kernel cache all of it, and changes it in
// every way. wantChanges compares the mount with the result.
func changed(t *testing.T, opts stackOptions) *stack {
	s := newStack(t, opts, func(source string) {
		for _, name := range []string{"same", "gone", "renamed", "rewritten", "mode", "dir/gone/f", "dir/same"} {
			write(t, source, "d/"+name, 5000, 1)
		}
		write(t, source, "d/large", 9<<20, 1) // in passthrough, the kernel reads it at the source
	})
	s.epoch(1)
	s.settled()
	sh(t, `cd "$1" && ls -lR . && cat d/* d/dir/* >/dev/null 2>&1; ! test -e d/new && ! test -e d/dir/new/f`, s.point)
	time.Sleep(20 * time.Millisecond) // the times of the source advance by a few milliseconds
	for name, size := range map[string]int{"new": 4000, "dir/new/f": 4000, "other": 6000, "larger": 10 << 20} {
		write(t, s.source, "d/"+name, size, 2)
	}
	write(t, s.source, "d/rewritten", 7000, 2)
	sh(t, `cd "$1"/d && mv other renamed && mv larger large && rm -r gone dir/gone && chmod 604 mode`, s.source)
	return s
}

// differences compares names, attributes and content of the mount with the source. It uses each
// changed name before it lists the directory, because a listing renews what the kernel has cached.
func (s *stack) differences() string {
	out, err := trySh(`cd "$2" && ! test -e d/gone && ! test -e d/dir/gone/f && test "$(stat -c %a d/mode)" = 604 &&
		for f in new dir/new/f renamed rewritten large; do cmp "d/$f" "$1/d/$f" || exit 1; done &&
		diff -r "$1" . &&
		list() { cd "$1" && find . -type f -printf '%p %m %s %T@\n' | sort; } &&
		test "$(list "$1")" = "$(list "$2")"`, s.source, s.point)
	if err != nil {
		return err.Error() + "\n" + out
	}
	return ""
}

// A refresh makes every change visible at once, in each mode, also of files that the daemon has
// open, and reports it.
func TestRefreshShowsChanges(t *testing.T) {
	t.Parallel()
	eachPlace(t, func(t *testing.T, opts stackOptions) {
		s := changed(t, opts)
		want := "added d/dir/new, added d/new, removed d/dir/gone, removed d/gone, replaced d/large, replaced d/renamed, replaced d/rewritten"
		if got := s.refresh("."); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		if diff := s.differences(); diff != "" {
			t.Error(diff)
		}
		if got := s.refresh("."); got != "" {
			t.Errorf("a second time: got %s", got)
		}
	})
}

// The sweep makes every change visible within its window, without a refresh.
func TestSweepShowsChanges(t *testing.T) {
	t.Parallel()
	eachPlace(t, func(t *testing.T, opts stackOptions) {
		opts.window = 3 * time.Second
		s := changed(t, opts)
		s.eventually("the mount shows all changes", func() bool { return s.differences() == "" })
	})
}

// A handle of a directory that was opened before a refresh lists the new names after it.
func TestRefreshOfOpenDirectory(t *testing.T) {
	s := newStack(t, stackOptions{}, func(source string) { write(t, source, "d/a", 1, 1) })
	sh(t, `ls "$1" && ls "$1"`, s.in("d")) // the kernel caches the listing
	h := holder(t, "rewind", s.in("d"))
	dir := filepath.Join(s.source, "d")
	info, err := os.Stat(dir)
	s.check(err)
	write(t, s.source, "d/b", 1, 1)
	s.check(os.Chtimes(dir, time.Time{}, info.ModTime())) // the kernel compares it with that of its cache
	if got, want := s.refresh("d"), "added d/b"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	fmt.Fprintln(h.in)
	if got, want := h.line(), ". .. a b "; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A file that was replaced by rename(2) while the daemon keeps it open for the next epoch is read
// in its new version after a refresh, and the old handle is not used again.
func TestRefreshOfIdleHandle(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, mode fs.Mode) {
		s := newStack(t, stackOptions{mode: mode}, func(source string) { write(t, source, "f", 1000, 1) })
		sh(t, `cat "$1" >/dev/null`, s.in("f"))
		s.eventually("the handle is idle", func() bool { return s.handler.Stats().IdleHandles == 1 })
		write(t, s.source, "new", 1000, 2)
		sh(t, `mv "$1"/new "$1"/f`, s.source)
		if got, want := s.refresh("f"), "replaced f"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		sh(t, `cmp "$1" "$2"`, s.in("f"), filepath.Join(s.source, "f"))
		s.eventually("the old handle is closed", func() bool { return s.handler.Stats().IdleHandles == 1 })
	})
}

// Files are read, listed and looked up while they are replaced and refreshed. After a refresh, an
// open returns the version that the source had then, or a later one.
func TestRefreshUnderReaders(t *testing.T) {
	if testing.Short() {
		t.Skip("reads while files change, for long")
	}
	t.Parallel()
	eachMode(t, func(t *testing.T, mode fs.Mode) {
		s := newStack(t, stackOptions{mode: mode, quotas: oneTier}, func(source string) {
			for i := range 20 {
				write(t, source, fmt.Sprintf("d/f%02d", i), 3000, 0)
			}
		})
		stop := filepath.Join(t.TempDir(), "stop")
		var readers sync.WaitGroup
		for range 3 {
			readers.Go(func() {
				sh(t, `until test -e "$2"; do cat "$1"/* >/dev/null 2>&1; ls -l "$1" >/dev/null 2>&1; done; true`, s.in("d"), stop)
			})
		}
		for round := range 10 {
			for i := range 20 {
				write(t, s.source, "new", 3000+round, uint64(round))
				s.check(os.Rename(filepath.Join(s.source, "new"), filepath.Join(s.source, "d", fmt.Sprintf("f%02d", i))))
			}
			s.refresh("d")
			sh(t, `cd "$1" && for f in *; do cmp "$f" "$2/$f" || exit 1; done`, s.in("d"), filepath.Join(s.source, "d"))
		}
		s.check(os.WriteFile(stop, nil, 0o644))
		readers.Wait()
	})
}
