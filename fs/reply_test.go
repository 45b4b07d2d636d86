package fs

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/hanwen/go-fuse/v2/splice"
	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/fs/fusectl"
)

// If go-fuse cannot empty a pipe, because it cannot open /dev/null, replies are not spliced.
// go-fuse opens it once in a process, so that the test needs a process of its own.
func TestCannotSplice(t *testing.T) {
	const env = "MILKWEED_TEST_CANNOT_SPLICE"
	if os.Getenv(env) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestCannotSplice$", "-test.v")
		cmd.Env = append(os.Environ(), env+"=1")
		if out, err := cmd.CombinedOutput(); !strings.Contains(string(out), "--- PASS: TestCannotSplice") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	free, err := unix.Open("/", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(free)
	var before unix.Rlimit
	unix.Getrlimit(unix.RLIMIT_NOFILE, &before)
	unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(free) + 2, Max: before.Max}) // enough for a pipe
	can := canSplice(slog.New(slog.DiscardHandler))
	unix.Setrlimit(unix.RLIMIT_NOFILE, &before)
	if can {
		t.Error("replies would be spliced")
	}
}

// A replies is a file system with the file f, whose reads have a given reply.
type replies struct {
	fuse.RawFileSystem
	reply  func(in *fuse.ReadIn) fuse.ReadResult
	status fuse.Status
}

func (r *replies) Lookup(_ <-chan struct{}, _ *fuse.InHeader, _ string, out *fuse.EntryOut) fuse.Status {
	out.NodeId = 2
	out.Attr = fuse.Attr{Ino: 2, Mode: syscall.S_IFREG | 0o444, Size: 4096, Nlink: 1}
	return fuse.OK
}

func (r *replies) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	out.Attr = fuse.Attr{Ino: in.NodeId, Mode: syscall.S_IFDIR | 0o555, Nlink: 1}
	if in.NodeId == 2 {
		out.Attr = fuse.Attr{Ino: 2, Mode: syscall.S_IFREG | 0o444, Size: 4096, Nlink: 1}
	}
	return fuse.OK
}

func (r *replies) Open(<-chan struct{}, *fuse.OpenIn, *fuse.OpenOut) fuse.Status { return fuse.OK }

func (r *replies) Read(_ <-chan struct{}, in *fuse.ReadIn, _ []byte) (fuse.ReadResult, fuse.Status) {
	return r.reply(in), r.status
}

// When the reply to a read cannot be written to the kernel, or not spliced, the reader gets an
// error and does not wait for ever.
func TestFailedReply(t *testing.T) {
	unreadable, err := unix.Mmap(-1, 0, 4096, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(unreadable)
	defer splice.ClearSplicePool()
	for name, reply := range map[string]func(*fuse.ReadIn) fuse.ReadResult{
		"EFAULT":         func(*fuse.ReadIn) fuse.ReadResult { return &readResult{new(bufferPool), unreadable, 4096} },
		"bad descriptor": func(*fuse.ReadIn) fuse.ReadResult { return &spliceResult{1 << 20, 0, 4096, func(int) {}} },
		"directory": func(*fuse.ReadIn) fuse.ReadResult {
			fd, _ := unix.Open("/", unix.O_RDONLY|unix.O_CLOEXEC, 0)
			return &spliceResult{uintptr(fd), 0, 4096, func(int) { unix.Close(fd) }}
		},
	} {
		t.Run(name, func(t *testing.T) {
			point := t.TempDir()
			fs := &replies{RawFileSystem: fuse.NewDefaultRawFileSystem(), reply: reply}
			server, err := fuse.NewServer(fs, point, &fuse.MountOptions{DirectMount: true})
			if err != nil {
				drivertest.Skipf(t, "needs FUSE: %v", err)
			}
			go server.Serve()
			defer server.Unmount()
			cmd := exec.Command("cat", point+"/f")
			read := make(chan string, 1)
			go func() {
				out, _ := cmd.CombinedOutput()
				read <- string(out)
			}()
			select {
			case out := <-read:
				if !strings.Contains(out, "error") && !strings.Contains(out, "Bad file descriptor") && !strings.Contains(out, "Is a directory") {
					t.Errorf("got %q, want an error", out)
				}
			case <-time.After(20 * time.Second):
				t.Error("the reader waits")
			}
		})
	}
}

// A reply that the kernel rejects before it looks for the request is detected, and the process that
// waits for it ends with the connection.
func TestLostReply(t *testing.T) {
	t.Parallel()
	lost := newLostReplies(slog.New(slog.DiscardHandler))
	fs := &replies{RawFileSystem: fuse.NewDefaultRawFileSystem(), status: 600, reply: func(*fuse.ReadIn) fuse.ReadResult {
		return fuse.ReadResultData(nil)
	}}
	point := t.TempDir()
	server, err := fuse.NewServer(fs, point, &fuse.MountOptions{DirectMount: true, Logger: lost.logger()})
	if err != nil {
		t.Fatal(err)
	}
	go server.Serve()
	defer server.Unmount()
	if err := server.WaitMount(); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("stat", "-c", "%d", point).Output()
	if err != nil {
		t.Fatal(err)
	}
	dev, err := strconv.ParseUint(strings.TrimSpace(string(out)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	connection, err := fusectl.Open(dev)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	cmd := exec.Command("cat", point+"/f")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	err = lost.await(ctx, time.Second, connection.Waiting, func() int { return 0 })
	if err != nil {
		t.Errorf("got %v, want a lost reply", err)
	}
	if err := connection.Abort(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("the reader got no error")
	}
}

// A message of go-fuse alone is no lost reply: not if the kernel waits for no more requests than are
// in flight, even once.
func TestNoLostReply(t *testing.T) {
	if testing.Short() {
		t.Skip("looks at the kernel in real time")
	}
	t.Parallel()
	lost := newLostReplies(slog.New(slog.DiscardHandler))
	lost.logger().Print("a message")
	ctx, cancel := context.WithCancel(t.Context())
	looks := 0
	err := lost.await(ctx, 3*lostPoll, func() (int, error) {
		if looks++; looks == 3 {
			time.AfterFunc(5*lostPoll, cancel)
			return 64, nil
		}
		return 65, nil
	}, func() int { return 64 })
	if err != context.Canceled || looks != 3 {
		t.Errorf("got %v after %d comparisons, want none after the third", err, looks)
	}
}
