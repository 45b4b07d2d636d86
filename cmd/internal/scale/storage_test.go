package scale

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// filesPerFolder is the number of files in each folder of the dataset.
const filesPerFolder = 100

// A dataset is a number of files of the same size. Their content is not stored: nobody looks at it.
type dataset struct {
	files int
	size  int64
	born  time.Time
}

func fileName(i int) string { return fmt.Sprintf("d%04d/f%02d", i/filesPerFolder, i%filesPerFolder) }

func (d *dataset) folders() int { return (d.files + filesPerFolder - 1) / filesPerFolder }

func (d *dataset) bytes() int64 { return int64(d.files) * d.size }

func (d *dataset) info(name string) (drivers.Info, error) {
	var folder, file int
	switch n, _ := fmt.Sscanf(name, "d%04d/f%02d", &folder, &file); {
	case name == "." || n == 1 && folder < d.folders():
		return drivers.Info{Name: path.Base(name), Mode: syscall.S_IFDIR | 0o755, Nlink: 2, Mtime: d.born, Ctime: d.born}, nil
	case n == 2 && folder*filesPerFolder+file < d.files:
		return drivers.Info{Name: path.Base(name), Mode: syscall.S_IFREG | 0o644, Nlink: 1, Size: d.size,
			Blocks: drivers.FullBlocks(d.size), Mtime: d.born, Ctime: d.born}, nil
	}
	return drivers.Info{}, &fs.PathError{Op: "stat", Path: name, Err: syscall.ENOENT}
}

// A source is the shared file system as one node sees it. An operation takes the latency, and bytes
// pass the link of the file system, which all nodes share, and that of the node.
type source struct {
	*dataset
	host    *host
	link    *link
	latency time.Duration
	stats   *drivers.StatPool
}

var _ drivers.Namer = (*source)(nil)

func (s *source) wait(ctx context.Context) error {
	time.Sleep(s.latency)
	return ctx.Err()
}

func (s *source) Stat(ctx context.Context, name string) (drivers.Info, error) {
	if err := s.wait(ctx); err != nil {
		return drivers.Info{}, err
	}
	return s.info(name)
}

func (s *source) Names(ctx context.Context, dir string) ([]drivers.Info, error) {
	if err := s.wait(ctx); err != nil {
		return nil, err
	}
	var infos []drivers.Info
	add := func(name string) {
		infos = append(infos, drivers.Info{Name: path.Base(name), Err: drivers.ErrNoAttributes})
	}
	if dir == "." {
		for i := range s.folders() {
			add(fmt.Sprintf("d%04d", i))
			infos[i].Mode = syscall.S_IFDIR
		}
		return infos, nil
	}
	var folder int
	if _, err := fmt.Sscanf(dir, "d%04d", &folder); err != nil || folder >= s.folders() {
		return nil, &fs.PathError{Op: "readdir", Path: dir, Err: syscall.ENOENT}
	}
	for i := folder * filesPerFolder; i < min(s.files, (folder+1)*filesPerFolder); i++ {
		add(fileName(i))
		infos[len(infos)-1].Mode = syscall.S_IFREG
	}
	return infos, nil
}

func (s *source) StatNames(ctx context.Context, dir string, names []string) ([]drivers.Info, error) {
	return s.stats.Stats(ctx, names, func(name string) (drivers.Info, error) {
		return s.Stat(ctx, path.Join(dir, name))
	}, func() {}), nil
}

func (s *source) ReadDir(ctx context.Context, dir string) ([]drivers.Info, error) {
	infos, err := s.Names(ctx, dir)
	for i, info := range infos {
		infos[i], err = s.info(path.Join(dir, info.Name))
	}
	return infos, err
}

func (s *source) Open(ctx context.Context, name string) (drivers.Object, error) {
	info, err := s.Stat(ctx, name)
	if err != nil {
		return nil, err
	}
	return &sourceFile{s, info}, nil
}

// fetch reads n bytes.
func (s *source) fetch(n int64) {
	s.host.read.Add(n)
	transfer(n, s.link, &s.host.in)
	time.Sleep(s.latency)
}

type sourceFile struct {
	source *source
	info   drivers.Info
}

func (f *sourceFile) Info() drivers.Info { return f.info }

func (f *sourceFile) Close() error { return nil }

func (f *sourceFile) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	if f.source.host.isDown() {
		return 0, errLost
	}
	n := max(0, min(int64(len(p)), f.info.Size-off))
	f.source.fetch(n)
	return length(p, n)
}

// length is the result of a read of n bytes into p, which it leaves as it is.
func length(p []byte, n int64) (int, error) {
	if n < int64(len(p)) {
		return int(n), io.EOF
	}
	return int(n), nil
}

// A store is a tier in memory that keeps the sizes of copies and not their content.
type store struct {
	mu     sync.Mutex // guards the following
	copies map[string]drivers.Info
}

var (
	_ drivers.Store    = (*store)(nil)
	_ drivers.Profiler = (*store)(nil)
)

func (s *store) Profile() drivers.Profile {
	return drivers.Profile{Latency: drivers.LatencyMemory}
}

func (s *store) Stat(_ context.Context, name string) (drivers.Info, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	info, ok := s.copies[name]
	if !ok {
		return info, &fs.PathError{Op: "stat", Path: name, Err: syscall.ENOENT}
	}
	return info, nil
}

func (s *store) Open(ctx context.Context, name string) (drivers.Object, error) {
	info, err := s.Stat(ctx, name)
	if err != nil {
		return nil, err
	}
	return stored{info}, nil
}

func (s *store) ReadDir(_ context.Context, dir string) ([]drivers.Info, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var infos []drivers.Info
	for name, info := range s.copies {
		if rest, ok := strings.CutPrefix(name, dir+"/"); ok && !strings.Contains(rest, "/") {
			infos = append(infos, info)
		}
	}
	return infos, nil
}

func (s *store) Create(_ context.Context, name string, info drivers.Info) (drivers.Writer, error) {
	return &writer{stored: stored{info}, store: s, name: name}, nil
}

func (s *store) Remove(_ context.Context, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.copies, name)
	return nil
}

type stored struct{ info drivers.Info }

func (f stored) Info() drivers.Info { return f.info }

func (f stored) Close() error { return nil }

func (f stored) ReadAt(_ context.Context, p []byte, off int64) (int, error) {
	return length(p, max(0, min(int64(len(p)), f.info.Size-off)))
}

type writer struct {
	stored
	store *store
	name  string
}

func (w *writer) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }

func (w *writer) ReadAt(p []byte, off int64) (int, error) {
	return w.stored.ReadAt(context.Background(), p, off)
}

func (w *writer) Commit() error {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	if w.store.copies == nil {
		w.store.copies = make(map[string]drivers.Info)
	}
	w.store.copies[w.name] = w.info
	return nil
}

func (w *writer) Abort() {}
