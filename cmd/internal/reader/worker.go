package reader

import (
	"archive/zip"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/child"
	"github.com/milkweedfs/milkweed/cmd/internal/dataset"
)

// Serve is the main function of a reader process: it does each task that it
// decodes from in and writes its results to out.
func Serve(in io.Reader, out io.Writer) error {
	w := worker{buf: make([]byte, BlockSize)}
	defer w.close()
	return child.Serve(in, out, func(t Task, reply func(any) error) error {
		return reply(w.run(t, func(r Result) { reply(r) }))
	})
}

// A worker does tasks.
type worker struct {
	buf   []byte
	file  openFile      // the file of the last extent; nil if it is closed
	stall time.Duration // the longest open or read of scan
}

// An openFile is an *os.File or a *directFile.
type openFile interface {
	io.ReaderAt
	io.Closer
	Fd() uintptr
}

// run does a task and calls progress with intermediate results.
func (w *worker) run(t Task, progress func(Result)) Result {
	if t.DropFirst {
		if err := dropAll(t); err != nil {
			return Result{Error: err.Error(), Done: true}
		}
	}
	start := time.Now()
	r, err := w.do(t, progress)
	r.Seconds = time.Since(start).Seconds()
	r.Done = true
	if err != nil {
		r.Error = err.Error()
	}
	return r
}

func (w *worker) do(t Task, progress func(Result)) (r Result, err error) {
	switch t.Kind {
	case Read:
		r.Bytes, err = each(t, w.read)
	case Check:
		r.Bytes, err = each(t, w.check)
	case Copy:
		r.Bytes, err = each(t, func(path string, f dataset.File) (int64, error) {
			return w.copy(path, filepath.Join(t.Target, f.Name))
		})
	case Drop:
		err = dropAll(t)
	case Stat:
		r.Bytes, err = each(t, stat)
	case Random:
		r.Bytes, err = w.random(filepath.Join(t.Folder, t.Files[0].Name), t.Files[0].Size, t.Count)
	case List:
		err = list(t.Folder)
	case Find:
		r.Bytes, err = find(t.Folder)
	case Batch:
		r.Bytes, err = w.batch(t.Extents)
	case Epoch:
		return w.epoch(t, progress)
	default:
		err = fmt.Errorf("%q is not a kind of task", t.Kind)
	}
	return r, err
}

// each calls f with each file and returns the total of the sizes that f returns.
// It fails if one of them is not the size of the file in the dataset.
func each(t Task, f func(path string, file dataset.File) (int64, error)) (int64, error) {
	total := int64(0)
	for _, file := range t.Files {
		path := filepath.Join(t.Folder, file.Name)
		n, err := f(path, file)
		if err != nil {
			return total, err
		}
		if n != file.Size {
			return total, fmt.Errorf("%s: %d bytes, want %d", path, n, file.Size)
		}
		total += n
	}
	return total, nil
}

// Limits on the reports of an epoch.
const (
	progressInterval = 100 * time.Millisecond
	maxWrong         = 5 // files
)

func (w *worker) epoch(t Task, progress func(Result)) (r Result, err error) {
	if err := list(t.Folder); err != nil {
		return r, err
	}
	reported := time.Now()
	w.stall = 0
	for _, file := range t.Files {
		_, err := w.compare(filepath.Join(t.Folder, file.Name), file, true, func(n int) {
			r.Bytes += int64(n)
			if time.Since(reported) >= progressInterval {
				reported = time.Now()
				progress(r)
			}
		})
		r.Files++
		r.Stall = w.stall.Seconds()
		if err != nil && len(r.Wrong) < maxWrong {
			r.Wrong = append(r.Wrong, err.Error())
		}
	}
	return r, nil
}

func (w *worker) read(path string, _ dataset.File) (int64, error) {
	return w.scan(path, false, func([]byte) error { return nil })
}

func (w *worker) check(path string, file dataset.File) (int64, error) {
	return w.compare(path, file, false, func(int) {})
}

// compare reads a file, calls read with the size of each block, and fails if the
// content is not that of the dataset.
func (w *worker) compare(path string, file dataset.File, drop bool, read func(n int)) (int64, error) {
	sum := uint32(0)
	size, err := w.scan(path, drop, func(p []byte) error {
		sum = dataset.Checksum(sum, p)
		read(len(p))
		return nil
	})
	if err == nil && (size != file.Size || sum != file.CRC) {
		err = fmt.Errorf("%s: %d bytes with checksum %08x, want %d with %08x", path, size, sum, file.Size, file.CRC)
	}
	return size, err
}

func (w *worker) copy(from, to string) (int64, error) {
	out, err := os.Create(to)
	if err != nil {
		return 0, err
	}
	defer out.Close()
	n, err := w.scan(from, false, func(p []byte) error {
		_, err := out.Write(p)
		return err
	})
	if err != nil {
		return n, err
	}
	return n, out.Close()
}

// scan reads a file from beginning to end, calls f with each block, and returns
// the size. With drop it then drops the pages of the file.
func (w *worker) scan(path string, drop bool, f func([]byte) error) (int64, error) {
	start := time.Now()
	file, err := os.Open(path)
	w.stalled(start)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	size := int64(0)
	for {
		start := time.Now()
		n, err := file.Read(w.buf)
		w.stalled(start)
		size += int64(n)
		if err == io.EOF {
			break
		}
		if err != nil {
			return size, err
		}
		if err := f(w.buf[:n]); err != nil {
			return size, err
		}
	}
	if drop {
		return size, dropPages(file)
	}
	return size, nil
}

// stalled records the time that an operation took.
func (w *worker) stalled(start time.Time) { w.stall = max(w.stall, time.Since(start)) }

// random reads count blocks. The offsets are the same in each call.
func (w *worker) random(path string, size int64, count int) (int64, error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	rng := rand.New(rand.NewPCG(5, 5))
	total := int64(0)
	for range count {
		n, err := file.ReadAt(w.buf[:RandomSize], rng.Int64N(size/RandomSize)*RandomSize)
		total += int64(n)
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

func stat(path string, _ dataset.File) (int64, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return 0, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	return st.Size, nil
}

func list(folder string) error {
	return filepath.WalkDir(folder, func(_ string, _ fs.DirEntry, err error) error { return err })
}

// find returns the total size of the files below a folder.
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

func (w *worker) batch(extents []Extent) (int64, error) {
	total := int64(0)
	for _, x := range extents {
		n, err := w.extent(x)
		if err == nil && n != x.Length {
			err = fmt.Errorf("%s: %d bytes, want %d", x.Path, n, x.Length)
		}
		if err != nil {
			w.close()
			return total, err
		}
		total += n
	}
	return total, nil
}

// open opens the file of an extent.
func (x Extent) open() (openFile, error) {
	if x.Direct {
		return openDirect(x.Path)
	}
	return os.Open(x.Path)
}

// extent reads an extent, and closes the file after the last one.
func (w *worker) extent(x Extent) (n int64, err error) {
	if w.file == nil {
		if w.file, err = x.open(); err != nil {
			w.file = nil
			return 0, err
		}
	}
	if x.NPZ {
		n, err = w.archive(x.Length)
	} else {
		n, err = w.sequence(x.Offset, x.Length)
	}
	if err != nil || !x.Last {
		return n, err
	}
	if x.Drop && !x.Direct {
		if err := dropPages(w.file); err != nil {
			return n, err
		}
	}
	return n, w.close()
}

func (w *worker) sequence(off, length int64) (int64, error) {
	total := int64(0)
	for total < length {
		n, err := w.file.ReadAt(w.buf[:min(length-total, BlockSize)], off+total)
		total += int64(n)
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

// archive reads a NumPy archive as NumPy does: first the directory at its end,
// then the header of the only member, and then the member in sequence. Package
// zip compares the checksum. It returns the size of the archive.
func (w *worker) archive(size int64) (int64, error) {
	z, err := zip.NewReader(w.file, size)
	if err != nil {
		return 0, err
	}
	for _, member := range z.File {
		m, err := member.Open()
		if err != nil {
			return 0, err
		}
		for err == nil {
			_, err = m.Read(w.buf)
		}
		m.Close()
		if err != io.EOF {
			return 0, err
		}
	}
	return size, nil
}

func (w *worker) close() error {
	if w.file == nil {
		return nil
	}
	f := w.file
	w.file = nil
	return f.Close()
}

// dropAll drops the pages of all files of a task from the page cache.
func dropAll(t Task) error {
	for _, f := range t.Files {
		file, err := os.Open(filepath.Join(t.Folder, f.Name))
		if err != nil {
			return err
		}
		err = dropPages(file)
		file.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func dropPages(file interface{ Fd() uintptr }) error {
	return unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED)
}
