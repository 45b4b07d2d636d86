package posix

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers"
)

// Holes implements drivers.HoleFinder by lseek(2). A file system without SEEK_HOLE has no holes.
func (d *Dir) Holes(ctx context.Context, name string) ([]drivers.Hole, drivers.Info, error) {
	if err := checkRequest(ctx, "holes", name); err != nil {
		return nil, drivers.Info{}, err
	}
	r := d.acquire()
	defer r.release()
	fd, err := d.openRead(r, name, unix.O_NONBLOCK)
	if err != nil {
		return nil, drivers.Info{}, pathError("holes", name, asMissing(err))
	}
	o, err := r.newObject(fd, name)
	if err != nil {
		unix.Close(fd)
		return nil, drivers.Info{}, pathError("holes", name, err)
	}
	defer unix.Close(fd) // nothing was read, so that o.Close has no pages to drop
	holes, err := findHoles(ctx, fd, o.info.Size)
	if err == nil {
		err = o.verify() // the holes of another version are not those of o.info
	}
	if err != nil {
		return nil, drivers.Info{}, pathError("holes", name, err)
	}
	return holes, o.info, nil
}

// findHoles returns the first holes of a file of the given size.
func findHoles(ctx context.Context, fd int, size int64) ([]drivers.Hole, error) {
	var holes []drivers.Hole
	for off := int64(0); off < size && len(holes) < drivers.MaxHoles; {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		start, err := seek(fd, off, unix.SEEK_HOLE)
		if err != nil || start >= size { // each file has a hole at its end
			return holes, err
		}
		end, err := seek(fd, start, unix.SEEK_DATA)
		if err == unix.ENXIO { // up to the end of the file
			end, err = size, nil
		}
		if err != nil {
			return nil, err
		}
		holes = append(holes, drivers.Hole{Start: start, End: min(end, size)})
		off = end
	}
	return holes, nil
}

func seek(fd int, off int64, whence int) (n int64, err error) {
	err = ignoringEINTR(func() error {
		n, err = unix.Seek(fd, off, whence)
		return err
	})
	return n, err
}
