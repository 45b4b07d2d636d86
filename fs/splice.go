package fs

import (
	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/hanwen/go-fuse/v2/splice"

	"github.com/milkweedfs/milkweed/drivers"
)

// maxSplice is the largest read that is answered by way of a pipe, which has to
// hold it. Where the kernel asks for a megabyte, which only root can make it do,
// a copy costs no more than the calls that it takes to do without.
const maxSplice = 256 << 10

// splice answers a read with pages of the file itself, if it is where that
// works, and else returns nil.
func (f *fileSystem) splice(in *fuse.ReadIn) fuse.ReadResult {
	if in.Size > maxSplice {
		return nil
	}
	move := f.splicer(in)
	if move == nil {
		return nil
	}
	pipe, err := splice.Get()
	if err != nil {
		return nil
	}
	n, err := 0, pipe.Grow(int(in.Size))
	if err == nil {
		n, err = move(pipe.WriteFd(), int64(in.Offset), int(in.Size))
	}
	if err != nil || n == 0 { // of an answer without bytes the pipe would not come back
		splice.Done(pipe)
		return nil
	}
	return fuse.ReadResultPipe(pipe, n)
}

// splicer returns what moves bytes of the file that a request is for, or nil.
func (f *fileSystem) splicer(in *fuse.ReadIn) func(pipe uintptr, off int64, n int) (int, error) {
	if f.mode != Stateless {
		if h, ok := f.files.get(in.Fh); ok {
			if s, ok := h.obj.(drivers.Splicer); ok {
				return s.Splice
			}
		}
		return nil
	}
	e := f.names.Get(in.NodeId)
	if e == nil {
		return nil
	}
	return func(pipe uintptr, off int64, n int) (int, error) { return f.reader.Splice(e, pipe, off, n) }
}
