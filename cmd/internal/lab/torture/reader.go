package torture

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/child"
)

// A Kind is a way to read a file.
type Kind string

// The ways to read.
const (
	Read     Kind = "read"     // read(2) from beginning to end
	Pread    Kind = "pread"    // pread(2) of random ranges
	Mmap     Kind = "mmap"     // a shared mapping
	Direct   Kind = "o_direct" // O_DIRECT
	Sendfile Kind = "sendfile" // sendfile(2) to a pipe
	Splice   Kind = "splice"   // splice(2) to a pipe
	Forked   Kind = "forked"   // two processes that share a descriptor and its position
	AtOnce   Kind = "64"       // 64 threads, each with a descriptor of its own
	Across   Kind = "across"   // half of the file, and the rest after its copy was made
)

// kinds lists the kinds with their weights.
var kinds = []struct {
	kind   Kind
	weight int
}{{Read, 6}, {Pread, 4}, {Mmap, 4}, {Direct, 3}, {Sendfile, 3}, {Splice, 3}, {Across, 8}, {Forked, 1}, {AtOnce, 1}}

// A task is a request to a reader process: to read one file of the mount.
type task struct {
	Kind   Kind   `json:"kind"`
	File   int    `json:"file"`
	Newest int    `json:"newest"`         // the latest version that may appear during the read
	Copy   string `json:"copy,omitempty"` // the copy in the tier in memory, for Across
	Drop   bool   `json:"drop,omitempty"` // drop the pages of the file first
	Seed   uint64 `json:"seed"`
}

// A Result is what one descriptor has read.
type Result struct {
	Kind    Kind       `json:"kind"`
	File    int        `json:"file"`
	Start   time.Time  `json:"start"`
	End     time.Time  `json:"end"`
	Bytes   int64      `json:"bytes"`
	Version int        `json:"version"` // -1 if the bytes are of no version, or after an error before the first byte
	Diff    *Diff      `json:"diff,omitempty"`
	Op      string     `json:"op,omitempty"`     // the system call that failed
	Errno   unix.Errno `json:"errno,omitempty"`  // its error
	Short   bool       `json:"short,omitempty"`  // the file ended before the end of its version
	Placed  bool       `json:"placed,omitempty"` // the file was open while its copy was published
}

// Took returns the duration of a read.
func (r Result) Took() time.Duration { return r.End.Sub(r.Start) }

// A worker reads files in a reader process.
type worker struct {
	model Model
	point string
}

// ServeReader is the main function of a reader process: it does each task that it decodes
// from in, below the folder point, and writes its results to out.
func ServeReader(m Model, point string, in io.Reader, out io.Writer) error {
	w := worker{m, point}
	return child.Serve(in, out, func(t task, reply func(any) error) error { return reply(w.do(t)) })
}

func (w worker) do(t task) []Result {
	n := 1
	if t.Kind == AtOnce {
		n = 64
	}
	results := make([]Result, n)
	var threads sync.WaitGroup
	for i := range results {
		threads.Go(func() { results[i] = w.one(t, uint64(i)) })
	}
	threads.Wait()
	return results
}

// one reads a file with one descriptor.
func (w worker) one(t task, thread uint64) Result {
	s := &session{worker: w, task: t, rng: rand.New(rand.NewPCG(t.Seed, thread))}
	s.r = Result{Kind: t.Kind, File: t.File, Version: -1, Start: time.Now()}
	err := s.read()
	s.r.End = time.Now()
	if failed := (*callError)(nil); errors.As(err, &failed) {
		s.r.Op, s.r.Errno = failed.op, failed.errno
	} else if err != nil && !errors.Is(err, errWrong) {
		s.r.Op, s.r.Errno = err.Error(), unix.EINVAL
	}
	return s.r
}

// errWrong ends a session whose Result has a Diff.
var errWrong = errors.New("wrong bytes")

// A callError is the error of a system call.
type callError struct {
	op    string
	errno unix.Errno
}

func (e *callError) Error() string { return fmt.Sprintf("%s: %v", e.op, e.errno) }

// call adds the name of a system call to its error.
func call(op string, err error) error {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return &callError{op, errno}
	}
	return err
}

// A session is one descriptor of one file.
type session struct {
	worker
	task task
	rng  *rand.Rand
	r    Result
	f    *os.File
	size int64
}

func (s *session) read() error {
	flags := unix.O_RDONLY
	if s.task.Kind == Direct {
		flags |= unix.O_DIRECT
	}
	path := filepath.Join(s.point, s.model.Name(s.task.File))
	unplaced := s.task.Copy != "" && !exists(s.task.Copy)
	f, err := os.OpenFile(path, flags, 0)
	if err != nil {
		return call("open", err)
	}
	defer f.Close()
	s.f = f
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return call("fstat", err)
	}
	s.size = st.Size
	if s.task.Drop {
		unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	}
	if err := s.content(unplaced); err != nil {
		return err
	}
	s.r.Placed = s.r.Placed || unplaced && exists(s.task.Copy)
	return s.whole()
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func (s *session) content(unplaced bool) error {
	switch s.task.Kind {
	case Pread:
		return s.pread()
	case Mmap:
		return s.mmap()
	case Direct:
		return s.direct()
	case Sendfile, Splice:
		return s.pipe()
	case Forked:
		return s.forked()
	case Across:
		return s.across(unplaced)
	}
	return s.sequence(s.size + 1)
}

// check compares bytes with the model. All bytes of a session must be of one version.
func (s *session) check(p []byte, off int64) error {
	s.r.Bytes += int64(len(p))
	if len(p) == 0 {
		return nil
	}
	if s.r.Version >= 0 && s.model.equal(p, s.task.File, s.r.Version, off) {
		return nil
	}
	version := s.model.Identify(p, s.task.File, s.task.Newest, off)
	if version >= 0 && s.r.Version < 0 {
		s.r.Version = version
		return nil
	}
	d := Diff{Versions: []int{s.r.Version, version}, First: off}
	if version < 0 {
		d = s.model.Diff(p, s.task.File, s.task.Newest, off)
		if s.r.Version >= 0 && len(d.Versions) > 0 && d.Versions[0] != s.r.Version {
			d.Versions = append(d.Versions, s.r.Version)
			d.Flipped = false
		}
	}
	s.r.Version, s.r.Diff = -1, &d
	return errWrong
}

// whole checks that the size of the file is that of its version.
func (s *session) whole() error {
	if s.r.Version >= 0 && s.size != s.model.Size(s.task.File, s.r.Version) {
		s.r.Short = true
	}
	return nil
}
