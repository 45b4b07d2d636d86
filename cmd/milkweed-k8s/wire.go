package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/procs"
)

// The plugin and the mounter talk over a unix socket of type SOCK_SEQPACKET. A connection has one
// request, which is one packet, and one reply. A packet is JSON. The request "mount" carries the
// descriptor of /dev/fuse. If the plugin closes the connection before the reply, the mounter ends what
// it has begun.

// defaultSocket is the path of the socket of the mounter.
const defaultSocket = "/run/milkweed-csi/mounter.sock"

// The operations of a request.
const (
	opFind  = "find"  // which file system serves the volume Key? Replies Device, or 0
	opMount = "mount" // serve Volume at the descriptor, which is mounted at Target
	// The file system Device of the volume Key, if that is known, is unmounted: wait for the end of its
	// daemon, which is ended if need be.
	opEnd   = "end"
	opWatch = "watch" // replies when no daemon can serve the file system Device, or the mounter ends
)

// A request is a request to the mounter.
type request struct {
	Op     string `json:"op"`
	Key    string `json:"key,omitempty"`
	Device uint64 `json:"device,omitempty"` // the device number of the file system
	Target string `json:"target,omitempty"` // the name of the mount
	Volume volume `json:"volume,omitzero"`
}

// A response is the reply of the mounter.
type response struct {
	Device  uint64   `json:"device,omitempty"`
	Failure *failure `json:"failure,omitempty"`
}

// A failure is an error of the mounter or of milkweed. It has the JSON fields of the verdict of
// milkweed mount.
type failure struct {
	Code    exit.Code `json:"code"`
	Message string    `json:"message"`
	Remedy  string    `json:"remedy,omitempty"`
	Denied  bool      `json:"denied,omitempty"` // it matches fs.ErrPermission
}

func (f *failure) err() error { return &exit.Error{Code: f.Code, Err: f, Remedy: f.Remedy} }

func (f *failure) Error() string        { return f.Message }
func (f *failure) Is(target error) bool { return target == fs.ErrPermission && f.Denied }

// fail returns the failure for an error.
func fail(err error) *failure {
	f := &failure{Code: exit.Of(err), Message: err.Error(), Denied: errors.Is(err, fs.ErrPermission)}
	if e, ok := errors.AsType[*exit.Error](err); ok {
		f.Message, f.Remedy = e.Err.Error(), e.Remedy
	}
	return f
}

// maxPacket is larger than any request: JSON writes a byte of a volume as up to 6. maxReply is larger than any
// reply.
const (
	maxPacket = 1 << 20
	maxReply  = 64 << 10
)

// dialTimeout bounds how long the mounter may take to accept a connection.
const dialTimeout = 5 * time.Second

// errNoMounter is the error of a mounter that cannot be reached.
var errNoMounter = errors.New("the mounter does not answer")

// A mounterClient sends requests to the mounter.
type mounterClient struct {
	socket string
	uid    int // the user of the mounter; root is accepted, too
}

// do sends a request, and waits for the reply. device is a descriptor that the request carries, or nil.
func (m mounterClient) do(ctx context.Context, r request, device *os.File) (response, error) {
	d := net.Dialer{Timeout: dialTimeout}
	c, err := d.DialContext(ctx, "unixpacket", m.socket)
	if err != nil {
		return response{}, fmt.Errorf("%w: %w", errNoMounter, err)
	}
	conn := c.(*net.UnixConn)
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	// Otherwise a process that has made the socket first would get the volumes' secrets.
	uid, err := procs.PeerUser(conn)
	if err != nil {
		return response{}, err
	}
	if uid != m.uid && uid != 0 {
		return response{}, fmt.Errorf("%w: user %d listens on %s, not user %d", errNoMounter, uid, m.socket, m.uid)
	}
	data, err := json.Marshal(r)
	if err != nil {
		return response{}, err
	}
	if err := conn.SetWriteBuffer(maxPacket); err != nil {
		return response{}, err
	}
	var rights []byte
	if device != nil {
		rights = unix.UnixRights(int(device.Fd()))
	}
	if _, _, err := conn.WriteMsgUnix(data, rights, nil); err != nil {
		return response{}, contextError(ctx, fmt.Errorf("%w: %w", errNoMounter, err))
	}
	if device != nil { // while this process has it, a dead mount would look like a slow one
		device.Close()
	}
	buf := make([]byte, maxReply)
	n, err := conn.Read(buf)
	if err != nil {
		return response{}, contextError(ctx, fmt.Errorf("%w: %w", errNoMounter, err))
	}
	if n == 0 {
		return response{}, fmt.Errorf("%w: it has closed the connection", errNoMounter)
	}
	var reply response
	if err := json.Unmarshal(buf[:n], &reply); err != nil {
		return response{}, fmt.Errorf("reply of the mounter: %w", err)
	}
	if reply.Failure != nil {
		return response{}, reply.Failure.err()
	}
	return reply, nil
}

// contextError returns the error of ctx if it is done, and else err.
func contextError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// replaceSocket listens on path, for this user only. It removes a socket there, which an earlier process
// has left.
func replaceSocket(network, path string) (*net.UnixListener, error) {
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket != 0 {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	l, err := net.ListenUnix(network, &net.UnixAddr{Name: path, Net: network})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// receive reads a request and the descriptor that it carries, or nil. The caller closes the descriptor.
func receive(conn *net.UnixConn) (r request, device *os.File, err error) {
	data, oob := make([]byte, maxPacket), make([]byte, unix.CmsgSpace(4*8))
	n, oobn, flags, _, err := conn.ReadMsgUnix(data, oob)
	if err != nil {
		return r, nil, err
	}
	files, err := descriptors(oob[:oobn])
	defer func() {
		for _, f := range files {
			if f != device {
				f.Close()
			}
		}
	}()
	switch {
	case err != nil:
		return r, nil, err
	case n == 0:
		return r, nil, io.EOF
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		return r, nil, errors.New("the request is too long")
	}
	if err := json.Unmarshal(data[:n], &r); err != nil {
		return r, nil, fmt.Errorf("request: %w", err)
	}
	if len(files) == 1 && r.Op == opMount {
		return r, files[0], nil
	}
	if len(files) > 0 || r.Op == opMount {
		return r, nil, fmt.Errorf("request %q with %d descriptors", r.Op, len(files))
	}
	return r, nil, nil
}

// descriptors returns the descriptors in control messages. Go sets close-on-exec for them.
func descriptors(oob []byte) (files []*os.File, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, os.NewSyscallError("recvmsg", err)
	}
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue // not descriptors
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "/dev/fuse"))
		}
	}
	return files, nil
}
