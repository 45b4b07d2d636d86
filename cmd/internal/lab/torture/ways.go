package torture

import (
	"io"
	"os"
	"runtime/debug"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sequence reads with read(2) until the end of the file, or until n bytes were read. The
// end of the file must be at its size.
func (s *session) sequence(n int64) error {
	buf := make([]byte, minRead+s.rng.IntN(256<<10))
	for off := s.r.Bytes; off < n; off = s.r.Bytes {
		m, err := s.f.Read(buf)
		if err == io.EOF {
			s.r.Short = off != s.size
			return nil
		}
		if err != nil {
			return call("read", err)
		}
		if err := s.check(buf[:m], off); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) pread() error {
	for range 1 + s.rng.IntN(8) {
		n := min(s.size, minRead+s.rng.Int64N(200<<10))
		off := s.rng.Int64N(s.size - n + 1)
		buf := make([]byte, n)
		for got := 0; got < len(buf); { // a call that fails midway returns a part
			m, err := unix.Pread(int(s.f.Fd()), buf[got:], off+int64(got))
			if err != nil {
				return call("pread", err)
			}
			if m == 0 {
				s.r.Short = true
				return nil
			}
			got += m
		}
		if err := s.check(buf, off); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) mmap() (err error) {
	m, err := unix.Mmap(int(s.f.Fd()), 0, int(s.size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return call("mmap", err)
	}
	defer unix.Munmap(m)
	s.f.Close() // a mapping needs no descriptor
	buf := make([]byte, 64<<10)
	for off := int64(0); off < s.size; {
		n, err := copyMapped(buf, m[off:])
		if err != nil {
			return err
		}
		if err := s.check(buf[:n], off); err != nil {
			return err
		}
		off += int64(n)
	}
	return nil
}

// copyMapped copies from a mapping. A SIGBUS becomes EIO: the kernel could not read the
// page.
func copyMapped(to, from []byte) (n int, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() != nil {
			err = &callError{"page fault", unix.EIO}
		}
	}()
	return copy(to, from), nil
}

func (s *session) direct() error {
	buf := aligned(128 << 10)
	for off := int64(0); ; {
		n, err := unix.Pread(int(s.f.Fd()), buf, off)
		if err != nil {
			return call("pread", err)
		}
		if off+int64(n) < s.size && n%pageSize != 0 { // it failed midway
			n -= n % pageSize
		}
		if err := s.check(buf[:n], off); err != nil {
			return err
		}
		if off += int64(n); n == 0 || off >= s.size {
			s.r.Short = off != s.size
			return nil
		}
	}
}

// aligned returns n bytes that begin at a page.
func aligned(n int) []byte {
	buf := make([]byte, n+pageSize)
	skip := pageSize - int(uintptr(unsafe.Pointer(&buf[0]))%pageSize)
	return buf[skip : skip+n]
}

// pipe moves the file through a pipe, with sendfile(2) or splice(2).
func (s *session) pipe() error {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return call("pipe2", err)
	}
	defer unix.Close(ends[0])
	defer unix.Close(ends[1])
	buf := make([]byte, 64<<10)
	for off := int64(0); ; {
		n, err := s.toPipe(ends[1], len(buf))
		if err != nil {
			return call(string(s.task.Kind), err)
		}
		if n == 0 {
			s.r.Short = off != s.size
			return nil
		}
		for got := 0; got < n; {
			m, err := unix.Read(ends[0], buf[got:n])
			if err != nil {
				return call("read of the pipe", err)
			}
			got += m
		}
		if err := s.check(buf[:n], off); err != nil {
			return err
		}
		off += int64(n)
	}
}

func (s *session) toPipe(pipe, n int) (int, error) {
	if s.task.Kind == Sendfile {
		return unix.Sendfile(pipe, int(s.f.Fd()), nil, n)
	}
	m, err := unix.Splice(int(s.f.Fd()), nil, pipe, nil, n, 0)
	return int(m), err
}

// placedWithin bounds how long an Across session waits for the copy of its file.
const placedWithin = 300 * time.Millisecond

// across reads half of the file, waits until its copy is published, and reads the rest.
func (s *session) across(unplaced bool) error {
	if err := s.sequence(s.size / 2); err != nil {
		return err
	}
	if unplaced {
		// The rest of the file is copied in the background.
		for start := time.Now(); time.Since(start) < placedWithin; time.Sleep(5 * time.Millisecond) {
			if s.r.Placed = exists(s.task.Copy); s.r.Placed {
				break
			}
		}
	}
	return s.sequence(s.size + 1)
}

// forked shares the descriptor, and its position, with a child process. The child reads
// pages alternately with this process; both together read each page once.
func (s *session) forked() error {
	p, err := startSharer(s.model, s.task, s.f)
	if err != nil {
		return err
	}
	mine, failed := s.sharePages(s.f)
	theirs, err := p.pages()
	if err != nil {
		return err
	}
	if failed == nil {
		failed = theirs.err()
	}
	if failed != nil {
		return failed
	}
	both := append(mine, theirs.Pages...)
	seen := make(map[int64]bool)
	for _, off := range both {
		seen[off] = true
	}
	if s.r.Version >= 0 && theirs.Version >= 0 && s.r.Version != theirs.Version {
		s.r.Diff, s.r.Version = &Diff{Versions: []int{s.r.Version, theirs.Version}}, -1
		return errWrong
	}
	if s.r.Version < 0 {
		s.r.Version = theirs.Version
	}
	if theirs.Diff != nil {
		s.r.Diff, s.r.Version = theirs.Diff, -1
		return errWrong
	}
	pages := (s.size + pageSize - 1) / pageSize
	s.r.Short = int64(len(seen)) != pages || int64(len(both)) != pages
	return nil
}

// sharePages reads the pages of a file whose position another process moves too, and
// returns their offsets, which are in their headers.
func (s *session) sharePages(f *os.File) (offsets []int64, err error) {
	buf := make([]byte, pageSize)
	for {
		n, err := unix.Read(int(f.Fd()), buf)
		if err != nil {
			return offsets, call("read", err)
		}
		if n == 0 {
			return offsets, nil
		}
		off, ok := pageOffset(buf[:n])
		if !ok || off >= s.size {
			// The header is damaged. Whatever the offset is, the bytes are wrong.
			s.r.Version, s.r.Diff = -1, &Diff{First: -1, Bytes: n}
			return offsets, errWrong
		}
		if err := s.check(buf[:n], off); err != nil {
			return offsets, err
		}
		offsets = append(offsets, off)
	}
}
