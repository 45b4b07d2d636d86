package torture

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"os/exec"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/child"
)

// A shared is what a sharer has read.
type shared struct {
	Pages   []int64    `json:"pages"` // offsets
	Version int        `json:"version"`
	Diff    *Diff      `json:"diff,omitempty"`
	Op      string     `json:"op,omitempty"`
	Errno   unix.Errno `json:"errno,omitempty"`
}

func (s shared) err() error {
	if s.Errno != 0 {
		return &callError{s.Op, s.Errno}
	}
	return nil
}

// A sharer is a child process that shares a descriptor.
type sharer struct {
	cmd *exec.Cmd
	out io.Reader
}

// The descriptor in the child, and the words of its command line; see ServeSharer.
const (
	sharedFD    = 3
	sharerWord  = "share"
	sharerWords = 5
)

func startSharer(m Model, t task, f *os.File) (*sharer, error) {
	cmd := child.Command(context.Background(), sharerWord, strconv.FormatUint(m.Seed, 10), strconv.Itoa(m.Count),
		strconv.Itoa(t.File), strconv.Itoa(t.Newest))
	cmd.ExtraFiles = []*os.File{f}
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &sharer{cmd, out}, cmd.Start()
}

// pages waits for the process and returns what it has read.
func (p *sharer) pages() (s shared, err error) {
	err = json.NewDecoder(p.out).Decode(&s)
	return s, errors.Join(err, p.cmd.Wait())
}

// ServeSharer is the main function of the other process of a Forked read. args are those
// of startSharer.
func ServeSharer(args []string, out io.Writer) error {
	var numbers [sharerWords - 1]uint64
	for i := range numbers {
		n, err := strconv.ParseUint(args[i], 10, 64)
		if err != nil {
			return err
		}
		numbers[i] = n
	}
	s := &session{worker: worker{model: Model{numbers[0], int(numbers[1])}}, size: math.MaxInt64}
	s.task = task{File: int(numbers[2]), Newest: int(numbers[3])}
	s.r.Version = -1
	pages, err := s.sharePages(os.NewFile(sharedFD, "shared"))
	reply := shared{Pages: pages, Version: s.r.Version, Diff: s.r.Diff}
	if failed := (*callError)(nil); errors.As(err, &failed) {
		reply.Op, reply.Errno = failed.op, failed.errno
	}
	return json.NewEncoder(out).Encode(reply)
}

// pageOffset returns the offset that the header of a page names.
func pageOffset(p []byte) (int64, bool) {
	if len(p) < headerSize {
		return 0, false
	}
	return pageSize * int64(binary.LittleEndian.Uint32(p[12:])), true
}
