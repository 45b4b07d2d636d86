package posix

import (
	"context"
	"encoding/binary"
	"path"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers"
)

// What a sample may cost: with 1 ms for each operation, one of 64 files takes
// about 20 ms in a tree like ImageNet's.
const (
	sampleFolders = 128     // folders that are read
	sampleNames   = 8 << 10 // bytes of names that are read of each: some 200 names
	sampleUnknown = 64      // elements of each that are asked for a type which the folder does not tell
)

// Sample implements drivers.Sampler. It reads up to 8 folders at a time, those
// that were found last first, until so many of them have files that the sample
// can be spread over 8.
func (d *Dir) Sample(ctx context.Context, n int) (map[string]drivers.Info, error) {
	var files [][]string // by folder
	unread := []string{"."}
	for read, spread := 0, 0; spread < n && read < sampleFolders && len(unread) > 0; {
		next := unread[:min(len(unread), workers)]
		unread = unread[len(next):]
		listings, err := d.listSome(ctx, next)
		if err != nil && read == 0 {
			return nil, pathError("sample", ".", err)
		}
		var folders [][]string
		for _, l := range listings {
			spread += min(len(l.files), (n+workers-1)/workers)
			files = append(files, l.files)
			folders = append(folders, l.folders)
		}
		read += len(next)
		unread = append(deal(folders), unread...)
	}
	names := deal(files)
	return d.describeSome(ctx, names[:max(0, min(n, len(names)))]), nil
}

// describeSome describes those of names that are regular files, until ctx is
// done.
func (d *Dir) describeSome(ctx context.Context, names []string) map[string]drivers.Info {
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

// A listing is the start of a folder: what its first names are.
type listing struct {
	files   []string // regular ones
	folders []string
}

// listSome lists the start of each of folders. The error is that of one of
// those that cannot be read, whose listing is empty; a ctx that is done is none.
func (d *Dir) listSome(ctx context.Context, folders []string) ([]listing, error) {
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

// listStart lists the start of one folder. Names are those below the root.
func (d *Dir) listStart(ctx context.Context, folder string) (listing, error) {
	fd, err := d.openRead(folder, unix.O_DIRECTORY)
	if err != nil {
		return listing{}, err
	}
	defer unix.Close(fd)
	elems, err := readStart(fd)
	if err != nil {
		return listing{}, err
	}
	resolve(ctx, fd, elems)
	var l listing
	for _, e := range elems {
		switch e.kind {
		case unix.DT_REG:
			l.files = append(l.files, path.Join(folder, e.name))
		case unix.DT_DIR:
			l.folders = append(l.folders, path.Join(folder, e.name))
		}
	}
	return l, nil
}

// An element is a name in a folder.
type element struct {
	name string
	kind byte // DT_REG and so on; DT_UNKNOWN where the file system does not tell
}

// readStart returns the elements of the folder fd that one getdents64(2) gives.
func readStart(fd int) ([]element, error) {
	buf := make([]byte, sampleNames)
	var n int
	err := retry(func() (err error) {
		n, err = unix.ReadDirent(fd, buf)
		return err
	})
	if err != nil {
		return nil, err
	}
	return parseElements(buf[:n]), nil
}

// parseElements is what buf, which getdents64(2) filled, says; "." and ".."
// are left out.
func parseElements(buf []byte) []element {
	const kindAt, nameAt = 18, 19 // in struct linux_dirent64; the length is before
	var elems []element
	for len(buf) > 0 {
		size := binary.NativeEndian.Uint16(buf[kindAt-2:])
		name := unix.ByteSliceToString(buf[nameAt:size])
		if name != "." && name != ".." {
			elems = append(elems, element{name, buf[kindAt]})
		}
		buf = buf[size:]
	}
	return elems
}

// resolve finds out the kind of the first elements of the folder fd that have
// none, until ctx is done.
func resolve(ctx context.Context, fd int, elems []element) {
	var unknown []*element
	for i := range elems {
		if elems[i].kind == unix.DT_UNKNOWN && len(unknown) < sampleUnknown {
			unknown = append(unknown, &elems[i])
		}
	}
	parallel(ctx, workers, len(unknown), func(i int) error {
		var info drivers.Info
		if statAt(fd, unknown[i].name, &info) == nil {
			unknown[i].kind = byte(info.Type() >> 12) // as DT_ is made of S_IF
		}
		return nil
	})
}

// deal returns the first of each hand, then the second of each, and so on.
func deal(hands [][]string) []string {
	var all []string
	for i, more := 0, true; more; i++ {
		more = false
		for _, hand := range hands {
			if i < len(hand) {
				all = append(all, hand[i])
				more = true
			}
		}
	}
	return all
}
