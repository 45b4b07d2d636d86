package posix

import (
	"context"
	"encoding/binary"
	"path"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers"
)

// Bounds on the cost of a sample. If each operation takes 1 ms, a sample of 64 files takes
// about 20 ms in a tree like that of ImageNet.
const (
	sampleFolders = 128     // folders that are read
	sampleBytes   = 8 << 10 // bytes that are read of each folder: about 200 names
	sampleStats   = 64      // entries of each folder whose type is found by a stat
)

// Sample implements drivers.Sampler. It reads up to 8 folders at a time, the most recently
// found first. It stops when it has found n files. It counts at most n/8 of each folder, so
// that the sample is from at least 8 folders where possible.
func (d *Dir) Sample(ctx context.Context, n int) (drivers.Sample, error) {
	var files, links [][]string // by folder
	unread := []string{"."}
	for read, found := 0, 0; found < n && read < sampleFolders && len(unread) > 0; {
		next := unread[:min(len(unread), workers)]
		unread = unread[len(next):]
		listings, err := d.listStarts(ctx, next)
		if err != nil && read == 0 {
			return drivers.Sample{}, pathError("sample", ".", err)
		}
		var folders [][]string
		for _, l := range listings {
			found += min(len(l.files), (n+workers-1)/workers)
			files, links = append(files, l.files), append(links, l.links)
			folders = append(folders, l.folders)
		}
		read += len(next)
		unread = append(interleave(folders), unread...)
	}
	first := func(lists [][]string) []string {
		names := interleave(lists)
		return names[:max(0, min(n, len(names)))]
	}
	return drivers.Sample{Files: d.statRegular(ctx, first(files)), Links: first(links)}, nil
}

// statRegular returns the Infos of those names that are regular files. It stops when ctx is
// done.
func (d *Dir) statRegular(ctx context.Context, names []string) map[string]drivers.Info {
	var mu sync.Mutex // guards found
	found := make(map[string]drivers.Info)
	parallel(ctx, workers, len(names), func(i int) error {
		info, err := d.Stat(ctx, names[i])
		if err == nil && info.IsRegular() {
			mu.Lock()
			defer mu.Unlock()
			found[names[i]] = info
		}
		return nil
	})
	return found
}

// A listing holds the first names of a folder, relative to the root of the Dir.
type listing struct {
	files   []string // regular files
	folders []string
	links   []string // symbolic links
}

// listStarts lists the beginning of each of folders. The listing of an unreadable folder is
// empty; the error is that of one such folder. It stops without an error when ctx is done.
func (d *Dir) listStarts(ctx context.Context, folders []string) ([]listing, error) {
	listings := make([]listing, len(folders))
	errs := make([]error, len(folders))
	parallel(ctx, workers, len(folders), func(i int) error {
		listings[i], errs[i] = d.listStart(ctx, folders[i])
		return nil
	})
	for _, err := range errs {
		if err != nil {
			return listings, err
		}
	}
	return listings, nil
}

// listStart lists the beginning of one folder.
func (d *Dir) listStart(ctx context.Context, folder string) (listing, error) {
	r := d.acquire()
	defer r.release()
	fd, err := d.openRead(r, folder, unix.O_DIRECTORY)
	if err != nil {
		return listing{}, err
	}
	defer unix.Close(fd)
	entries, err := readStart(fd)
	if err != nil {
		return listing{}, err
	}
	resolveTypes(ctx, fd, entries)
	var l listing
	for _, e := range entries {
		switch e.typ {
		case unix.DT_REG:
			l.files = append(l.files, path.Join(folder, e.name))
		case unix.DT_DIR:
			l.folders = append(l.folders, path.Join(folder, e.name))
		case unix.DT_LNK:
			l.links = append(l.links, path.Join(folder, e.name))
		}
	}
	return l, nil
}

// An entry is a directory entry.
type entry struct {
	name string
	typ  byte // DT_REG and so on; DT_UNKNOWN if the file system does not provide it
}

// mode returns the type as that in st_mode of stat(2), 0 if it is unknown, as DTTOIF(3) does.
func (e entry) mode() uint32 { return uint32(e.typ) << 12 }

// readStart returns the entries at the beginning of the folder fd, as many as fit into sampleBytes.
// It goes on until no other name fits or the folder ends, because a signal, such as that by which
// the Go runtime preempts a goroutine, makes getdents64(2) return after a part of them.
func readStart(fd int) ([]entry, error) {
	buf := make([]byte, sampleBytes)
	used := 0
	for n := 1; n > 0 && len(buf)-used >= maxDirent; used += n {
		err := ignoringEINTR(func() (err error) {
			n, err = readDirent(fd, buf[used:])
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return parseEntries(buf[:used]), nil
}

// maxDirent is the size of the largest struct linux_dirent64: 19 bytes, a name of 255 bytes and a
// NUL, aligned to 8 bytes.
const maxDirent = 280

// readDirent is unix.ReadDirent, except in a test.
var readDirent = unix.ReadDirent

// parseEntries decodes buf, which getdents64(2) has filled. It omits "." and "..", and entries
// with the inode number 0, which are of removed files.
func parseEntries(buf []byte) []entry {
	const lengthOffset, typeOffset, nameOffset = 16, 18, 19 // in struct linux_dirent64
	var entries []entry
	for len(buf) > 0 {
		inode := binary.NativeEndian.Uint64(buf)
		size := binary.NativeEndian.Uint16(buf[lengthOffset:])
		name := unix.ByteSliceToString(buf[nameOffset:size])
		if name != "." && name != ".." && inode != 0 {
			entries = append(entries, entry{name, buf[typeOffset]})
		}
		buf = buf[size:]
	}
	return entries
}

// resolveTypes finds, by a stat of each, the types of the first sampleStats entries of the
// folder fd that are of unknown type. It stops when ctx is done.
func resolveTypes(ctx context.Context, fd int, entries []entry) {
	var unknown []*entry
	for i := range entries {
		if entries[i].typ == unix.DT_UNKNOWN && len(unknown) < sampleStats {
			unknown = append(unknown, &entries[i])
		}
	}
	parallel(ctx, workers, len(unknown), func(i int) error {
		var info drivers.Info
		if statAt(fd, unknown[i].name, &info) == nil {
			unknown[i].typ = byte(info.Type() >> 12) // as IFTODT(3) does
		}
		return nil
	})
}

// interleave returns the first element of each list, then the second of each, and so on.
func interleave(lists [][]string) []string {
	var all []string
	for i, more := 0, true; more; i++ {
		more = false
		for _, list := range lists {
			if i < len(list) {
				all = append(all, list[i])
				more = true
			}
		}
	}
	return all
}
