package faultdisk

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// CommandTimeout bounds the commands that work on a disk, such as mkfs and mount. It is
// the time after which a disk counts as hanging.
const CommandTimeout = 30 * time.Second

// A Disk is a disk in a process of its own. Its methods may be called concurrently.
type Disk struct {
	point string
	cmd   *exec.Cmd
	in    io.Closer

	mu       sync.Mutex // guards the following: one request at a time
	requests *json.Encoder
	replies  *json.Decoder

	device string // of Attach; "" if detached
}

// Start starts the process of a disk, which has to call Run with the folder point. It
// returns when the image is mounted. The caller must call Stop.
func Start(cmd *exec.Cmd, point string) (*Disk, error) {
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	d := &Disk{point: point, cmd: cmd, in: in, requests: json.NewEncoder(in), replies: json.NewDecoder(out)}
	if _, err := d.Stats(); err != nil {
		return nil, errors.Join(err, d.Stop())
	}
	return d, nil
}

// Stop detaches the loop device and ends the process. The file system of the disk must
// not be mounted.
func (d *Disk) Stop() error {
	err := d.Detach()
	d.in.Close()
	kill := time.AfterFunc(CommandTimeout/3, func() { d.cmd.Process.Kill() })
	defer kill.Stop()
	err = errors.Join(err, d.cmd.Wait())
	if gone := unix.Unmount(d.point, unix.MNT_DETACH); gone == nil { // the process was killed
		return errors.Join(err, errors.New("the image was still mounted"))
	}
	return err
}

func (d *Disk) do(r request) (Stats, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var a reply
	err := d.requests.Encode(r)
	if err == nil {
		err = d.replies.Decode(&a)
	}
	if err == nil && a.Error != "" {
		err = errors.New(a.Error)
	}
	if err != nil {
		return a.Stats, fmt.Errorf("fault disk: %w", err)
	}
	return a.Stats, nil
}

// Stats returns the counts so far.
func (d *Disk) Stats() (Stats, error) { return d.do(request{}) }

// SetFaults replaces the faults; see Image.SetFaults.
func (d *Disk) SetFaults(f Faults) error {
	_, err := d.do(request{Faults: &f})
	return err
}

// PowerOff cuts the power; see Image.PowerOff.
func (d *Disk) PowerOff(keep float64, seed uint64) error {
	_, err := d.do(request{Off: &powerOff{keep, seed}})
	return err
}

// PowerOn ends a power cut and all other faults.
func (d *Disk) PowerOn() error {
	_, err := d.do(request{On: true})
	return err
}

// Flip inverts one bit of the image; see Image.Flip.
func (d *Disk) Flip(off int64, bit int) error {
	_, err := d.do(request{Flip: &flip{off, bit}})
	return err
}

// Forget makes the disk empty; see Image.Forget.
func (d *Disk) Forget() error {
	_, err := d.do(request{Forget: true})
	return err
}

// Attach attaches a loop device to the disk and returns its path.
func (d *Disk) Attach(ctx context.Context) (string, error) {
	device, err := attach(ctx, filepath.Join(d.point, ImageName))
	d.device = device
	return device, err
}

// Detach detaches the loop device, if there is one. The kernel detaches it when its file
// system is no longer in use.
func (d *Disk) Detach() error {
	if d.device == "" {
		return nil
	}
	device := d.device
	d.device = ""
	return detach(device)
}

func attach(ctx context.Context, file string) (string, error) {
	// Without direct I/O, the loop device passes each write and each flush to the file.
	// The image has no page cache: see file.Open.
	return command(ctx, "losetup", "--find", "--show", "--direct-io=off", file)
}

func detach(device string) error {
	_, err := command(context.Background(), "losetup", "--detach", device)
	return err
}

// Format formats a device with the file system of a type, ext4, xfs or btrfs. All
// metadata is written at once: the file system has no background work left.
// options are arguments of its mkfs.
func Format(ctx context.Context, device, fsType string, options ...string) error {
	words := map[string][]string{
		"ext4":  {"mkfs.ext4", "-q", "-F", "-J", "size=8", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"},
		"xfs":   {"mkfs.xfs", "-q", "-f", "-K"},
		"btrfs": {"mkfs.btrfs", "-q", "-f", "-K"},
	}[fsType]
	if words == nil {
		return fmt.Errorf("%q: not a file system for a fault disk", fsType)
	}
	_, err := command(ctx, append(append(words, options...), device)...)
	return err
}

// MinSize returns the size of the smallest disk that can be formatted with a file system.
func MinSize(fsType string) int64 {
	switch fsType {
	case "xfs":
		return 320 << 20
	case "btrfs":
		return 128 << 20
	}
	return 32 << 20
}

// Mount mounts a device with the options of mount(8), of which there may be none. The file
// system replays its journal first, if necessary.
func Mount(ctx context.Context, device, fsType, point string, options ...string) error {
	words := strings.Join(append([]string{"noatime"}, options...), ",")
	_, err := command(ctx, "mount", "-t", fsType, "-o", words, device, point)
	return err
}

// Unmount unmounts the file system at a point.
func Unmount(ctx context.Context, point string) error {
	_, err := command(ctx, "umount", point)
	return err
}

// command runs a command and returns its output. A command that hangs is left behind
// after CommandTimeout.
func command(ctx context.Context, words ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, CommandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		return "", err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			return "", fmt.Errorf("%s: %w: %s", strings.Join(words, " "), err, strings.TrimSpace(errs.String()))
		}
		return strings.TrimSpace(out.String()), nil
	case <-ctx.Done():
		// A process that waits for the disk cannot be killed. It ends with the disk.
		return "", fmt.Errorf("%s: %w", strings.Join(words, " "), ctx.Err())
	}
}
