package fs

import (
	"bytes"
	"encoding/binary"
	"os"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// A patient server chooses the longest time-out of requests if the kernel has one, and then serves the descriptor
// that it got. In place of the kernel, this test is at the other end.
func TestPatientServer(t *testing.T) {
	for _, offered := range []uint64{fuse.CAP_REQUEST_TIMEOUT, 0} {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		kernel := os.NewFile(uintptr(pair[0]), "kernel")
		defer kernel.Close()
		f := &fileSystem{RawFileSystem: fuse.NewDefaultRawFileSystem()}
		if f.conn, err = dupConnection(pair[1]); err != nil {
			t.Fatal(err)
		}
		defer f.conn.close()
		const opInit, opFsyncDir = 26, 30
		flags := offered | fuse.CAP_INIT_EXT | fuse.CAP_MAX_PAGES
		ask := func(op uint32, body any) {
			var b bytes.Buffer
			in := fuse.InHeader{Length: uint32(binary.Size(fuse.InHeader{}) + binary.Size(body)), Opcode: op, Unique: 7, NodeId: 1}
			for _, part := range []any{in, body} {
				if err := binary.Write(&b, binary.NativeEndian, part); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := kernel.Write(b.Bytes()); err != nil {
				t.Fatal(err)
			}
		}
		reply := func(body any) (out fuse.OutHeader) {
			b := make([]byte, 4096)
			n, err := kernel.Read(b)
			r := bytes.NewReader(b[:n])
			for _, part := range []any{&out, body} {
				if err == nil {
					err = binary.Read(r, binary.NativeEndian, part)
				}
			}
			if err != nil || out.Unique != 7 {
				t.Fatalf("reply %+v: %v", out, err)
			}
			return out
		}
		body := struct {
			Major, Minor, MaxReadAhead, Flags, Flags2 uint32
			Unused                                    [11]uint32
		}{7, 45, 1 << 17, uint32(flags), uint32(flags >> 32), [11]uint32{}}
		ask(opInit, body)
		server, err := newPatientServer(f, pair[1], &fuse.MountOptions{MaxWrite: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		var init struct {
			Major, Minor, MaxReadAhead, Flags uint32
			MaxBackground, Threshold          uint16
			MaxWrite, TimeGran                uint32
			MaxPages, MapAlignment            uint16
			Flags2, MaxStackDepth             uint32
			RequestTimeout                    uint16
			Unused                            [11]uint16
		}
		reply(&init)
		if got := uint64(init.Flags2) << 32 & fuse.CAP_REQUEST_TIMEOUT; got != offered {
			t.Errorf("capability: got %#x, offered %#x", got, offered)
		}
		if init.RequestTimeout != 65535 || init.MaxWrite != 1<<20 {
			t.Errorf("got the reply %+v", init)
		}
		served := make(chan struct{})
		go func() {
			defer close(served)
			server.Serve()
		}()
		ask(opFsyncDir, [2]uint64{})
		if out := reply(&struct{}{}); out.Status != -int32(unix.ENOSYS) {
			t.Errorf("a request that no file system replies to: got status %d, want ENOSYS", out.Status)
		}
		kernel.Close()
		<-served
	}
}
