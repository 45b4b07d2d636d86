package main

import (
	"archive/zip"
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// A reader of the benchmark is a process that does errands: for each that it is
// given on its standard input it writes an answer to its standard output.

// What an errand can be.
const (
	readFiles   = "read"    // open, read to the end and close every file
	readRandom  = "random"  // read blocks of randomSize of the first file, Count of them
	statFiles   = "stat"    // stat every file
	listFolder  = "list"    // list Folder and all below it
	findFolder  = "find"    // the same, and stat every file, as find -size does
	checkFiles  = "check"   // compare every file with its checksum
	copyFiles   = "copy"    // copy every file to the folder To
	dropFiles   = "drop"    // have the kernel forget the pages of every file
	readBatch   = "batch"   // read Parts
	randomSize  = 4 << 10   // bytes
	errandBlock = 256 << 10 // bytes that are asked for at a time
)

// An errand is what a reader is to do.
type errand struct {
	Do     string   `json:"do"`
	Folder string   `json:"folder,omitempty"`
	Files  []sample `json:"files,omitempty"` // below Folder
	To     string   `json:"to,omitempty"`
	Count  int      `json:"count,omitempty"`
	Parts  []part   `json:"parts,omitempty"`
	Drop   bool     `json:"drop,omitempty"` // have the kernel forget the pages of Files before
}

// A part is a part of a file, of which all that is read in one epoch is read by
// one reader from the file's beginning to its end.
type part struct {
	Path   string `json:"path"`
	Offset int64  `json:"offset,omitempty"`
	Length int64  `json:"length"`
	Last   bool   `json:"last,omitempty"` // the file ends with it
	NPZ    bool   `json:"npz,omitempty"`  // the file is a numpy archive, and the part all of it
	Drop   bool   `json:"drop,omitempty"` // have the kernel forget its pages after
}

// An answer is what a reader or a trainer did.
type answer struct {
	Seconds     float64 `json:"seconds"`
	Bytes       int64   `json:"bytes"`                 // that were read
	Utilization float64 `json:"utilization,omitempty"` // of a trainer
	Error       string  `json:"error,omitempty"`       // why it could not be done
}

func newBenchReader() *cobra.Command {
	return &cobra.Command{
		Use:     "read",
		Short:   "Read files and tell how long it took",
		Long:    "Read is a reader that `milkweed bench` starts.",
		Example: `  echo '{"do": "find", "folder": "/mnt"}' | milkweed bench read`,
		Hidden:  true,
		Args:    usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			r := errandReader{buf: make([]byte, errandBlock)}
			defer r.close()
			return answerAll(c.InOrStdin(), c.OutOrStdout(), r.run)
		},
	}
}

// answerAll answers each question that it reads, until there are no more.
func answerAll[Q any](in io.Reader, out io.Writer, f func(Q) answer) error {
	questions, answers := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var q Q
		if err := questions.Decode(&q); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if err := answers.Encode(f(q)); err != nil {
			return err
		}
	}
}

// An errandReader does errands. Between two batches it may keep the file open
// that the second goes on with.
type errandReader struct {
	buf  []byte
	file *os.File // nil if none is open
}

func (r *errandReader) run(e errand) answer {
	if e.Drop {
		if err := dropAll(e); err != nil {
			return answer{Error: err.Error()}
		}
	}
	start := time.Now()
	n, err := r.do(e)
	a := answer{Seconds: time.Since(start).Seconds(), Bytes: n}
	if err != nil {
		a.Error = err.Error()
	}
	return a
}

func (r *errandReader) do(e errand) (int64, error) {
	switch e.Do {
	case readFiles:
		return r.each(e, r.readFile)
	case checkFiles:
		return r.each(e, r.check)
	case copyFiles:
		return r.each(e, func(path string, s sample) (int64, error) { return r.copy(path, filepath.Join(e.To, s.Name)) })
	case dropFiles:
		return 0, dropAll(e)
	case statFiles:
		return r.each(e, statFile)
	case readRandom:
		return r.random(filepath.Join(e.Folder, e.Files[0].Name), e.Files[0].Size, e.Count)
	case listFolder:
		return 0, list(e.Folder)
	case findFolder:
		return find(e.Folder)
	case readBatch:
		return r.batch(e.Parts)
	default:
		return 0, fmt.Errorf("%q is no errand", e.Do)
	}
}

// each calls f with every file, and adds up the bytes, of which each has to have
// as many as it should.
func (r *errandReader) each(e errand, f func(path string, s sample) (int64, error)) (int64, error) {
	total := int64(0)
	for _, s := range e.Files {
		path := filepath.Join(e.Folder, s.Name)
		n, err := f(path, s)
		if err != nil {
			return total, err
		}
		if n != s.Size {
			return total, fmt.Errorf("%s: %d bytes, where %d were written", path, n, s.Size)
		}
		total += n
	}
	return total, nil
}

// readFile opens, reads and closes a file.
func (r *errandReader) readFile(path string, _ sample) (int64, error) {
	return r.consume(path, func([]byte) error { return nil })
}

// consume calls f with each block of a file.
func (r *errandReader) consume(path string, f func([]byte) error) (int64, error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	total := int64(0)
	for {
		n, err := file.Read(r.buf)
		total += int64(n)
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
		if err := f(r.buf[:n]); err != nil {
			return total, err
		}
	}
}

func (r *errandReader) check(path string, s sample) (int64, error) {
	sum := uint32(0)
	n, err := r.consume(path, func(p []byte) error {
		sum = crc32.Update(sum, crcTable, p)
		return nil
	})
	if err == nil && sum != s.CRC {
		err = fmt.Errorf("%s: checksum %08x, where %08x was written", path, sum, s.CRC)
	}
	return n, err
}

func (r *errandReader) copy(from, to string) (int64, error) {
	out, err := os.Create(to)
	if err != nil {
		return 0, err
	}
	defer out.Close()
	n, err := r.consume(from, func(p []byte) error {
		_, err := out.Write(p)
		return err
	})
	if err != nil {
		return n, err
	}
	return n, out.Close()
}

func statFile(path string, _ sample) (int64, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return 0, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	return st.Size, nil
}

// find returns what the sizes of the files below a folder add up to.
func find(folder string) (int64, error) {
	total := int64(0)
	err := filepath.WalkDir(folder, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		total += info.Size()
		return nil
	})
	return total, err
}

// random reads blocks at places that are the same in each call.
func (r *errandReader) random(path string, size int64, count int) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	rng := rand.New(rand.NewPCG(5, 5))
	total := int64(0)
	for range count {
		n, err := f.ReadAt(r.buf[:randomSize], rng.Int64N(size/randomSize)*randomSize)
		total += int64(n)
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

func (r *errandReader) batch(parts []part) (int64, error) {
	total := int64(0)
	for _, p := range parts {
		n, err := r.part(p)
		if err == nil && n != p.Length {
			err = fmt.Errorf("%s: %d bytes, where %d were written", p.Path, n, p.Length)
		}
		if err != nil {
			r.close()
			return total, err
		}
		total += n
	}
	return total, nil
}

// part reads a part, and closes the file if the part is the last.
func (r *errandReader) part(p part) (n int64, err error) {
	if r.file == nil {
		if r.file, err = os.Open(p.Path); err != nil {
			return 0, err
		}
	}
	if p.NPZ {
		n, err = r.archive(p.Length)
	} else {
		n, err = r.sequence(p.Offset, p.Length)
	}
	if err != nil || !p.Last {
		return n, err
	}
	if p.Drop {
		if err := unix.Fadvise(int(r.file.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
			return n, err
		}
	}
	return n, r.close()
}

func (r *errandReader) sequence(off, length int64) (int64, error) {
	total := int64(0)
	for total < length {
		n, err := r.file.ReadAt(r.buf[:min(length-total, errandBlock)], off+total)
		total += int64(n)
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

// archive reads a numpy archive as numpy does: the directory at its end, the
// head of its only member, and that from its beginning to its end, comparing the
// checksum. It returns the size of the archive.
func (r *errandReader) archive(size int64) (int64, error) {
	z, err := zip.NewReader(r.file, size)
	if err != nil {
		return 0, err
	}
	for _, member := range z.File {
		m, err := member.Open()
		if err != nil {
			return 0, err
		}
		for err == nil {
			_, err = m.Read(r.buf)
		}
		m.Close()
		if err != io.EOF {
			return 0, err
		}
	}
	return size, nil
}

func (r *errandReader) close() error {
	if r.file == nil {
		return nil
	}
	f := r.file
	r.file = nil
	return f.Close()
}

// dropAll has the kernel forget the pages of all files of an errand.
func dropAll(e errand) error {
	for _, s := range e.Files {
		if err := dropPages(filepath.Join(e.Folder, s.Name)); err != nil {
			return err
		}
	}
	return nil
}

// dropPages has the kernel forget the pages of a file.
func dropPages(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
}

// An readerPeer is a peer that answers errands or trainings.
type readerPeer struct{ *peer }

// send asks for something; receive waits for it. More may be sent before.
func (p readerPeer) send(question any) error {
	if err := json.NewEncoder(p.in).Encode(question); err != nil {
		return fmt.Errorf("ask a reader: %w", err)
	}
	return nil
}

func (p readerPeer) receive() (answer, error) {
	var a answer
	if err := p.out.Decode(&a); err != nil {
		return a, fmt.Errorf("a reader: %w", err)
	}
	if a.Error != "" {
		return a, fmt.Errorf("a reader: %s", a.Error)
	}
	return a, nil
}

// A readerCrew is several readers, which read at the same time.
type readerCrew []readerPeer

// startCrew starts readers for a user, which ctx ends.
func startCrew(ctx context.Context, n int, user *benchUser, stderr io.Writer) (readerCrew, error) {
	var c readerCrew
	for range n {
		cmd := self(ctx, "bench", "read")
		cmd.SysProcAttr.Credential = user
		p, err := startPeer(cmd, stderr)
		if err != nil {
			c.stop()
			return nil, err
		}
		c = append(c, readerPeer{p})
	}
	return c, nil
}

// do has each do one errand, and returns the bytes of all and the time of the
// slowest.
func (c readerCrew) do(errands []errand) (answer, error) {
	for i, e := range errands {
		if err := c[i].send(e); err != nil {
			return answer{}, err
		}
	}
	var all answer
	for i := range errands {
		a, err := c[i].receive()
		if err != nil {
			return answer{}, err
		}
		all.Bytes += a.Bytes
		all.Seconds = max(all.Seconds, a.Seconds)
	}
	return all, nil
}

// share deals the files of an errand to all.
func (c readerCrew) share(e errand) []errand {
	errands := make([]errand, len(c))
	for i := range errands {
		errands[i] = e
		errands[i].Files = nil
	}
	for i, s := range e.Files {
		to := &errands[i%len(c)]
		to.Files = append(to.Files, s)
	}
	return errands
}

// stop ends them all. They have no open file when it returns.
func (c readerCrew) stop() {
	for _, p := range c {
		p.in.Close() // all at once, before any is waited for
	}
	for _, p := range c {
		p.peer.stop()
	}
}
