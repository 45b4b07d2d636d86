package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/control/controltest"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/fs"
)

// deadMount makes a mount like that of a daemon that was killed. Most commands work on it as on a
// live one, because they connect to the control socket and do not call the file system.
func deadMount(t *testing.T) (point string) {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	point = filepath.Join(dir, "point")
	if err := os.Mkdir(point, 0o755); err != nil {
		t.Fatal(err)
	}
	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		drivertest.Skipf(t, "no FUSE: %v", err)
	}
	defer device.Close()
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d", device.Fd(), os.Getuid(), os.Getgid())
	if err := unix.Mount("/source", point, fs.Type, unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		drivertest.Skipf(t, "mounting needs root: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(point, unix.MNT_DETACH) })
	return point
}

// served makes a dead mount and serves its control socket.
func served(t *testing.T, d *controltest.Daemon) (point string) {
	t.Helper()
	d.MountPoint = deadMount(t)
	controltest.Folder(t)
	controltest.Serve(t, d)
	return d.MountPoint
}

func TestStatus(t *testing.T) {
	clock := func(minute int) string {
		return time.Date(2026, 1, 2, 3, minute, 0, 0, time.UTC).Local().Format(time.TimeOnly)
	}
	point := served(t, &controltest.Daemon{})
	out, _, err := runMilkweed(t, "status", point)
	wantCode(t, err, exit.OK)
	want := point + `: ready, up 1h2m3s, process ` + fmt.Sprint(os.Getpid()) + `, milkweed 1.2.3
mode passthrough: files are 10 MiB on average

LEVEL   USED     QUOTA    USE%  FILES  READS  BYTES READ  ERRORS  CORRUPT  HEALTH                         PATH
ram     100 MiB  400 MiB  25%   90     1,000  900 MiB     0       0        healthy                        /dev/shm/milkweed
ssd     0 B      800 MiB  0%    0      0      0 B         3       0        down: no space left on device  /local/milkweed
source                                 400    300 MiB     0                -                              /lustre/imagenet

LEVEL   MODE         OPENS  BYTES READ      PASSTHROUGH
ram     cached       100    30 MiB          on
        passthrough  800    6.8 GiB opened  
ssd     -            0      0 B             off: it is stacked
source  cached       100    3.0 MiB         off: the source has a cap
READS and BYTES READ do not include reads in passthrough, which the kernel does directly: "opened" means the sizes of the opened files.

EPOCH   BEGAN     TOOK  FILES  BYTES READ                                       LATENCY  BANDWIDTH  FILL    TIERS
5       ` + clock(6) + `  13s   900                                                     0s       0s         0s      0s
mixed   ` + clock(7) + `  14s   700                                                     0s       0s         0s      0s
6       ` + clock(8) + `  2m5s  1,000  2.0 MiB fill, 5.0 MiB ram, 70 MiB opened in ram  0s       1.5s       0s      0s
7, now  ` + clock(11) + `  1s    20                                                      0s       0s         0s      0s
all                                                                             1m1.5s   0s         32.1ms  2.13s
LATENCY, BANDWIDTH, FILL and TIERS are times that readers waited, summed over the readers.
mixed: not recognizable as an epoch. Files were opened again before others were opened.

opens      1,000, 90% from a tier; 5 open now
complete   no: 910 of 1,000 known files (91 MiB) have no copy; 2 directories are not listed yet
placed     90 files (100 MiB), 30 prefetched, 4 skipped, 1 failed
in flight  2 files (8.0 MiB), 7 queued
limit      3 blocks of at most 12 in flight in the background; requests take 1.2 × the time of an idle source
plan       1,800 entries in 2 streams, 64 ahead of the job (8.0 MiB); 90% of 200 opens predicted
scrub      ` + time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC).Local().Format(time.DateTime) + ` of .: 90 copies (100 MiB) verified in 12s, 1 corrupt, 1 file copied again; 1 tier skipped
source     3 idle handles, 523 operations: 0 acl, 0 holes, 100 open, 400 read, 3 readdir, 0 readlink, 20 stat, 0 xattr
`
	if out != want {
		t.Errorf("got\n%s\nwant\n%s", out, want)
	}
}

// The status of a bucket also has its requests.
func TestStatusOfABucket(t *testing.T) {
	point := served(t, &controltest.Daemon{Bucket: true})
	out, _, err := runMilkweed(t, "status", point)
	wantCode(t, err, exit.OK)
	for _, want := range []string{
		`
source                                 400    300 MiB     0                -                              s3://bucket/imagenet
`, `
source  cached       100    3.0 MiB         off: the source is a bucket, which the kernel cannot read
`, `
source     3 idle handles, 523 operations: 0 acl, 0 holes, 100 open, 400 read, 3 readdir, 0 readlink, 20 stat, 0 xattr
bucket     3,413 requests: 3,400 get, 12 list, 1 other; 320 MiB received
           5 retries, 6 hedges, 2 throttled; 7 hidden keys
`} {
		if !strings.Contains(out, want) {
			t.Errorf("got\n%s\nwithout %s", out, want)
		}
	}
}

// A path in the mount selects the mount, and the JSON is one line.
func TestStatusJSON(t *testing.T) {
	point := served(t, &controltest.Daemon{})
	out, _, err := runMilkweed(t, "status", "--json", filepath.Join(point, "train/a.jpg"))
	wantCode(t, err, exit.OK)
	if strings.Count(out, "\n") != 1 {
		t.Errorf("%d lines", strings.Count(out, "\n"))
	}
	s, err := control.DecodeStatus([]byte(out))
	if err != nil {
		t.Fatal(err)
	}
	if s.MountPoint != point {
		t.Errorf("mount_point %q, want %q", s.MountPoint, point)
	}
}

// The help of status names every field of the JSON.
func TestStatusSchemaIsDocumented(t *testing.T) {
	p, err := json.Marshal((&controltest.Daemon{MountPoint: "/mnt", Bucket: true}).Status(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	var s map[string]any
	if err := json.Unmarshal(p, &s); err != nil {
		t.Fatal(err)
	}
	delete(s["opens"].(map[string]any), "ram") // keys that are names
	help := newStatus().Long
	for _, key := range []string{"tiers", "source", "fills", "placement", "open_handles", "read_latency"} {
		if !strings.Contains(help, key) {
			t.Errorf("%s is missing", key)
		}
	}
	requests := s["source"].(map[string]any)["requests"]
	for _, part := range []any{s, s["source"], requests, s["tiers"].([]any)[1], s["fills"], s["placement"]} {
		for key := range part.(map[string]any) {
			if !strings.Contains(help, key) {
				t.Errorf("%s is missing", key)
			}
		}
	}
}

func TestStatusOfDeadDaemon(t *testing.T) {
	point := deadMount(t)
	controltest.Folder(t)
	_, _, err := runMilkweed(t, "status", point)
	wantCode(t, err, exit.NotMounted)
	if err == nil || !strings.Contains(err.Error(), "`milkweed umount "+point+"`") {
		t.Errorf("error without a remedy: %v", err)
	}
}

func TestStatusOutside(t *testing.T) {
	_, _, err := runMilkweed(t, "status", t.TempDir())
	wantCode(t, err, exit.NotMounted)
}

func TestWhere(t *testing.T) {
	point := served(t, &controltest.Daemon{Locations: map[string]control.Location{
		".":       {Type: "directory"},
		"a":       {Type: "file", SizeBytes: 2048, Level: "ram", State: control.Placed, TierPath: "/dev/shm/m/a"},
		"b":       {Type: "file", SizeBytes: 2048, Level: "source", State: control.Filling, FilledBytes: 512},
		"c/\xff":  {Type: "file", SizeBytes: 10, Level: "source", State: control.AtSource},
		"d":       {Type: "file", SizeBytes: 1 << 40, Level: "source", State: control.NotPlaced, Reason: "no tier has room"},
		"missing": {},
	}})
	t.Chdir(filepath.Dir(point)) // relative paths are resolved
	out, _, err := runMilkweed(t, "where", "point", "point/a", "point/b", "point/c/\xff", "point/d", "point/none")
	wantCode(t, err, exit.Failure)
	if err == nil || !strings.Contains(err.Error(), "point/none: file does not exist") {
		t.Errorf("error %v", err)
	}
	want := `point           directory
point/a         placed      ram     2.0 KiB  /dev/shm/m/a
point/b         filling     source  2.0 KiB  512 B copied
"point/c/\xff"  source      source  10 B     
point/d         not placed  source  1.0 TiB  no tier has room
`
	if out != want {
		t.Errorf("got\n%s\nwant\n%s", out, want)
	}
	out, _, err = runMilkweed(t, "where", "--json", "point/a", "point/c/\xff")
	wantCode(t, err, exit.OK)
	for i, line := range strings.Split(strings.TrimSpace(out), "\n") {
		var l control.Location
		if err := json.Unmarshal([]byte(line), &l); err != nil || l.Path != []string{"point/a", "point/c/\xff"}[i] {
			t.Errorf("%s: %+v, %v", line, l, err)
		}
	}
}

func TestWarmup(t *testing.T) {
	d := &controltest.Daemon{Steps: []control.Progress{
		{Scanning: true, FilesTotal: 3},
		{FilesTotal: 1500, FilesDone: 1490, FilesSkipped: 10, BytesTotal: 3 << 20, BytesDone: 2 << 20, BytesSkipped: 1 << 20},
	}}
	point := served(t, d)
	out, _, err := runMilkweed(t, "warmup", filepath.Join(point, "train"), point)
	wantCode(t, err, exit.OK)
	if want := "1,490 of 1,500 files (2.0 MiB of 3.0 MiB) in the tiers after "; !strings.HasPrefix(out, want) {
		t.Errorf("got %q, want %q…", out, want)
	}
	if want := "; 10 files (1.0 MiB) skipped, because no tier has room\n"; !strings.HasSuffix(out, want) {
		t.Errorf("got %q, want …%q", out, want)
	}
	if got, want := *d.Warmed.Load(), []string{"train", "."}; !reflect.DeepEqual(got, want) {
		t.Errorf("names in the request: %q, want %q", got, want)
	}
}

func TestWarmupWithFailures(t *testing.T) {
	last := control.Progress{FilesTotal: 2, FilesDone: 1, FilesFailed: 1, Errors: []control.FileError{{Path: "train/x", Error: "input/output error"}}}
	point := served(t, &controltest.Daemon{Steps: []control.Progress{last}})
	out, stderr, err := runMilkweed(t, "warmup", "--json", point)
	wantCode(t, err, exit.Incomplete)
	if want := "train/x: input/output error\n"; stderr != want {
		t.Errorf("stderr %q, want %q", stderr, want)
	}
	var got control.Progress
	if err := json.Unmarshal([]byte(out), &got); err != nil || !reflect.DeepEqual(got, last) {
		t.Errorf("got %+v, %v; want %+v", got, err, last)
	}
}

// With --dry-run, warmup says what would be copied, and exits with 8 if there is no room.
func TestWarmupDryRunOutput(t *testing.T) {
	last := control.Progress{
		FilesTotal: 1500, FilesDone: 1000, FilesSkipped: 10, FilesElsewhere: 100, BytesTotal: 9 << 20, BytesDone: 5 << 20, BytesSkipped: 1 << 20, BytesElsewhere: 1 << 20,
		NeededBytes: 4 << 20, RoomBytes: 3 << 20,
	}
	d := &controltest.Daemon{Steps: []control.Progress{last}}
	point := served(t, d)
	out, _, err := runMilkweed(t, "warmup", "--dry-run", point)
	wantCode(t, err, exit.Incomplete)
	if want := "400 of 1,500 files (3.0 MiB of 9.0 MiB) to copy: this needs 4.0 MiB, and the tiers have 3.0 MiB; " +
		"no room for 10 files (1.0 MiB); 100 files (1.0 MiB) for other nodes to copy\n"; out != want {
		t.Errorf("got %q, want %q", out, want)
	}
	d.Steps[0] = control.Progress{FilesTotal: 200, FilesSkipped: 148, BytesSkipped: 592 << 10, NeededBytes: 800 << 10, RoomBytes: 40 << 20, FilesNoInode: 140}
	out, _, err = runMilkweed(t, "warmup", "--dry-run", point)
	wantCode(t, err, exit.Incomplete)
	if want := "and the tiers have 40 MiB; no room for 148 files (592 KiB), for 140 of them because there are too few inodes"; !strings.Contains(out, want) {
		t.Errorf("got %q, without %q", out, want)
	}
	if e, ok := errors.AsType[*exit.Error](err); !ok || !strings.Contains(e.Remedy, "inodes") {
		t.Errorf("error: %+v", e)
	}
	d.Steps[0] = control.Progress{FilesTotal: 3, FilesDone: 3}
	out, _, err = runMilkweed(t, "warmup", "--dry-run", "--json", point)
	wantCode(t, err, exit.OK)
	var got map[string]any
	if err := json.Unmarshal([]byte(out), &got); err != nil || got["needed_bytes"] != 0.0 || got["room_bytes"] != 0.0 || got["files_done"] != 3.0 {
		t.Errorf("got %s, %v", out, err)
	}
	d.Steps[0] = control.Progress{FilesTotal: 1, FilesFailed: 1, Errors: []control.FileError{{Path: "x", Error: "permission denied"}}}
	_, stderr, err := runMilkweed(t, "warmup", "--dry-run", point)
	wantCode(t, err, exit.Incomplete)
	if stderr != "x: permission denied\n" {
		t.Errorf("stderr: %q", stderr)
	}
	if d.Warmed.Load() != nil {
		t.Error("a dry run has made a warm-up")
	}
}

// onWrite is a writer that calls a function at each write.
type onWrite func()

func (f onWrite) Write(p []byte) (int, error) {
	f()
	return len(p), nil
}

// The nodes of a job may write to one file: their tables are not mixed line by line.
func TestTablesAreWrittenAtOnce(t *testing.T) {
	point := served(t, new(controltest.Daemon))
	writes := 0
	counted := onWrite(func() { writes++ })
	wantCode(t, run(t.Context(), []string{"milkweed", "status", point}, counted, io.Discard), exit.OK)
	if writes != 1 {
		t.Errorf("status: %d writes", writes)
	}
	writes = 0
	c := config.Default()
	c.Source.Path = t.TempDir()
	if err := setDefaultTiers(&c, counted); err != nil || writes != 1 {
		t.Errorf("the default tiers: %v, %d writes", err, writes)
	}
}

func TestWarmupInterrupted(t *testing.T) {
	point := served(t, &controltest.Daemon{Steps: []control.Progress{{FilesTotal: 5}}, StepEvery: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	var out bytes.Buffer
	err := run(ctx, []string{"milkweed", "warmup", point}, &out, onWrite(cancel)) // it prints its progress
	wantCode(t, err, exit.Incomplete)
	if !strings.HasPrefix(out.String(), "0 of 5 files") {
		t.Errorf("printed %q", &out)
	}
}

// Umount removes the mount of a daemon that was killed.
func TestUmountStale(t *testing.T) {
	point := deadMount(t)
	controltest.Folder(t)
	if _, err := os.ReadDir(point); !errors.Is(err, unix.ENOTCONN) {
		t.Fatalf("reading the mount point: %v, want %v", err, unix.ENOTCONN)
	}
	_, _, err := runMilkweed(t, "umount", point)
	wantCode(t, err, exit.OK)
	if _, err := os.ReadDir(point); err != nil {
		t.Errorf("the mount point afterwards: %v", err)
	}
	_, _, err = runMilkweed(t, "umount", point)
	wantCode(t, err, exit.NotMounted)
}

// Umount names the processes that use the mount. With --lazy it unmounts nevertheless.
func TestUmountBusy(t *testing.T) {
	point := deadMount(t)
	controltest.Folder(t)
	fd, err := unix.Open(point, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	_, _, err = runMilkweed(t, "umount", point)
	wantCode(t, err, exit.MountPoint)
	if want := fmt.Sprintf("(%d)", os.Getpid()); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v; want it to name %s", err, want)
	}
	_, _, err = runMilkweed(t, "umount", "--lazy", point)
	wantCode(t, err, exit.OK)
}

// Umount ends a daemon, also one whose mount was removed by another program, and returns when it has released
// the mount point.
func TestUmountWaits(t *testing.T) {
	leftOver, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, point := range []string{deadMount(t), leftOver} {
		d := &controltest.Daemon{MountPoint: point}
		controltest.Folder(t)
		stop := controltest.Serve(t, d)
		released := make(chan struct{})
		go func() {
			for d.Shutdowns.Load() == 0 {
				time.Sleep(time.Millisecond)
			}
			time.Sleep(100 * time.Millisecond) // an umount that does not wait has ended
			close(released)
			stop()
		}()
		_, _, err = runMilkweed(t, "umount", point)
		wantCode(t, err, exit.OK)
		select {
		case <-released:
		default:
			t.Error("umount has returned, and the daemon serves the mount point")
		}
	}
}

func TestUmountWithin(t *testing.T) {
	point := deadMount(t)
	controltest.Folder(t)
	_, _, err := runMilkweed(t, "umount", filepath.Join(point, "train"))
	wantCode(t, err, exit.Usage)
}
