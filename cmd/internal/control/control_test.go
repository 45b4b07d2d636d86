package control_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/control/controltest"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const mountPoint = "/mnt/imagenet"

// dial serves d and returns a client of it.
func dial(t *testing.T, d *controltest.Daemon) *control.Client {
	t.Helper()
	controltest.Folder(t)
	d.MountPoint = mountPoint
	controltest.Serve(t, d)
	c, err := control.Dial(t.Context(), mountPoint)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestStatus(t *testing.T) {
	d := &controltest.Daemon{}
	c := dial(t, d)
	got, err := c.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want := d.Status(t.Context()); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

// The name of a file and the path of a copy may have any bytes.
func TestWhere(t *testing.T) {
	name := "train/\xff &+%/a#b\n.jpg"
	want := control.Location{Path: name, Type: "file", SizeBytes: 5, Level: "ram", TierPath: "/dev/shm/\xfe", State: control.Placed}
	c := dial(t, &controltest.Daemon{Locations: map[string]control.Location{name: want}})
	got, err := c.Where(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if _, err := c.Where(t.Context(), "missing"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v, want fs.ErrNotExist", err)
	}
	for _, bad := range []string{"", "/", "../x", "a//b", "a\x00b"} {
		if _, err := c.Where(t.Context(), bad); exit.Of(err) != exit.Usage {
			t.Errorf("Where(%q): %v, code %d, want %d", bad, err, exit.Of(err), exit.Usage)
		}
	}
}

func TestWarmup(t *testing.T) {
	last := control.Progress{FilesTotal: 4, FilesDone: 2, FilesSkipped: 1, FilesFailed: 1, BytesTotal: 40, BytesDone: 20,
		Errors: []control.FileError{{Path: "b\xff", Error: "input/output error"}}}
	d := &controltest.Daemon{
		Steps:     []control.Progress{{Scanning: true, FilesTotal: 3}, last},
		StepEvery: 2 * time.Second, // longer than between two reports
	}
	c := dial(t, d)
	var seen []control.Progress
	names := []string{"a\xff", "."}
	got, err := c.Warmup(t.Context(), names, func(p control.Progress) { seen = append(seen, p) })
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, last) {
		t.Errorf("last: got %+v, want %+v", got, last)
	}
	if len(seen) < 3 || !reflect.DeepEqual(seen[0], d.Steps[0]) {
		t.Errorf("reports: %+v", seen)
	}
	if warmed := *d.Warmed.Load(); !reflect.DeepEqual(warmed, names) {
		t.Errorf("names in the request: %q, want %q", warmed, names)
	}
}

// An estimate is no warm-up.
func TestEstimate(t *testing.T) {
	last := control.Progress{FilesTotal: 4, FilesDone: 2, NeededBytes: 8192, RoomBytes: 1 << 20}
	d := &controltest.Daemon{Steps: []control.Progress{last}}
	got, err := dial(t, d).Estimate(t.Context(), []string{"."}, func(control.Progress) {})
	if err != nil || !reflect.DeepEqual(got, last) {
		t.Errorf("got %+v, %v, want %+v", got, err, last)
	}
	if d.Warmed.Load() != nil {
		t.Error("the daemon was asked for a warm-up")
	}
}

func TestWarmupFails(t *testing.T) {
	d := &controltest.Daemon{
		Steps:     []control.Progress{{FilesTotal: 3}},
		WarmupErr: &exit.Error{Code: exit.Source, Err: errors.New("source: gone"), Remedy: "Bring it back."},
	}
	p, err := dial(t, d).Warmup(t.Context(), []string{"."}, func(control.Progress) {})
	if got, want := exit.Of(err), exit.Source; got != want {
		t.Errorf("code %d, want %d", got, want)
	}
	if want := "source: gone\n  Bring it back."; err == nil || err.Error() != want {
		t.Errorf("error %q, want %q", err, want)
	}
	if p.FilesTotal != 3 {
		t.Errorf("the last progress is %+v", p)
	}
}

// The warm-up ends when the client disconnects.
func TestWarmupCancelled(t *testing.T) {
	d := &controltest.Daemon{Steps: []control.Progress{{FilesTotal: 1}}, StepEvery: time.Hour}
	c := dial(t, d) // its cleanup waits for the warm-up
	ctx, cancel := context.WithCancel(t.Context())
	_, err := c.Warmup(ctx, []string{"."}, func(control.Progress) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
}

// If the daemon ends during a warm-up, the client returns an error.
func TestWarmupDaemonEnds(t *testing.T) {
	controltest.Folder(t)
	stop := controltest.Serve(t, &controltest.Daemon{
		MountPoint: mountPoint,
		Steps:      []control.Progress{{FilesTotal: 1}},
		StepEvery:  time.Hour,
	})
	c, err := control.Dial(t.Context(), mountPoint)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ended := make(chan error, 1)
	reported := make(chan bool, 100)
	go func() {
		_, err := c.Warmup(t.Context(), []string{"."}, func(control.Progress) { reported <- true })
		ended <- err
	}()
	<-reported
	stop()
	if err := <-ended; err == nil {
		t.Error("no error")
	}
}

func TestShutdown(t *testing.T) {
	d := &controltest.Daemon{}
	if err := dial(t, d).Shutdown(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if got := d.Shutdowns.Load(); got != 1 {
		t.Errorf("Shutdown was called %d times, want 1", got)
	}
}

func TestDialNothing(t *testing.T) {
	controltest.Folder(t)
	_, err := control.Dial(t.Context(), mountPoint)
	if got, want := exit.Of(err), exit.NotMounted; got != want {
		t.Errorf("%v: code %d, want %d", err, got, want)
	}
}

// Only the owner can connect: the directory has mode 0700 and the socket 0600.
func TestSocketIsPrivate(t *testing.T) {
	dial(t, &controltest.Daemon{})
	folder := os.Getenv(control.FolderEnv)
	sockets, _ := filepath.Glob(filepath.Join(folder, "imagenet-*.sock"))
	if len(sockets) != 1 {
		t.Fatalf("sockets: %q", sockets)
	}
	for path, want := range map[string]fs.FileMode{folder: 0o700, sockets[0]: 0o600} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s: mode %o, want %o", path, got, want)
		}
	}
}

// A directory to which other users can write is not used.
func TestListenRefusesOpenFolder(t *testing.T) {
	controltest.Folder(t)
	if err := os.Chmod(os.Getenv(control.FolderEnv), 0o777); err != nil {
		t.Fatal(err)
	}
	if l, err := control.Listen(t.Context(), mountPoint); err == nil {
		l.Close()
		t.Error("Listen used it")
	}
	if _, err := control.Dial(t.Context(), mountPoint); err == nil {
		t.Error("Dial used it")
	}
}

// Listen replaces the socket of a dead daemon, and not that of a live one.
func TestListenReplacesOnlyTheDead(t *testing.T) {
	controltest.Folder(t)
	l, err := control.Listen(t.Context(), mountPoint)
	if err != nil {
		t.Fatal(err)
	}
	if second, err := control.Listen(t.Context(), mountPoint); exit.Of(err) != exit.MountPoint {
		t.Errorf("a second daemon: %v, %v; want code %d", second, err, exit.MountPoint)
	}
	control.Abandon(l)
	l, err = control.Listen(t.Context(), mountPoint)
	if err != nil {
		t.Fatalf("after the death of the first: %v", err)
	}
	path := l.Addr().String()
	l.Close()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after Close the socket exists: %v", err)
	}
}

// The path of a socket is not too long for the kernel. Two mount points whose readable parts are
// equal have different sockets.
func TestSocketPath(t *testing.T) {
	controltest.Folder(t)
	seen := make(map[string]bool)
	for _, point := range []string{"/mnt/ä", "/mnt/ö", "/a/data", "/b/data", "/" + strings.Repeat("x", 300), "/"} {
		l, err := control.Listen(t.Context(), point)
		if err != nil {
			t.Errorf("%s: %v", point, err)
			continue
		}
		defer l.Close()
		if path := l.Addr().String(); seen[path] || len(path) > 107 {
			t.Errorf("%s: %s", point, path)
		} else {
			seen[path] = true
		}
	}
	long := filepath.Join(t.TempDir(), strings.Repeat("x", 90))
	if err := os.Mkdir(long, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv(control.FolderEnv, long)
	if _, err := control.Listen(t.Context(), mountPoint); exit.Of(err) != exit.Usage {
		t.Errorf("in a directory with a long path: %v", err)
	}
}

func TestFailure(t *testing.T) {
	for _, err := range []error{
		&exit.Error{Code: exit.Tier, Err: errors.New("tier ssd: gone"), Remedy: "Mount it."},
		&fs.PathError{Op: "open", Path: "x", Err: syscall.ENOENT},
		errors.New("plain"),
	} {
		got := control.Fail(err).Err()
		if got.Error() != err.Error() || exit.Of(got) != exit.Of(err) || errors.Is(got, fs.ErrNotExist) != errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%#v is decoded as %#v", err, got)
		}
	}
}

// Whatever a client sends, the daemon gets valid names only, and an error has a text and an exit
// code.
func FuzzRequest(f *testing.F) {
	d := &controltest.Daemon{MountPoint: mountPoint}
	ctx, stop := context.WithCancel(context.Background())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- (&control.Server{Daemon: d}).Serve(ctx, listener) }()
	f.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		stop()
		if err := <-ended; err != nil {
			f.Error(err)
		}
	})
	paths := []string{"/v1/where?path=", "/v1/warmup", "/v1/refresh", "/v1/scrub", "/v1/status", "/"}
	f.Add(uint8(0), "a%2Fb", []byte(nil))
	f.Add(uint8(0), "a b", make([]byte, 20_000))
	for i := range paths {
		for _, body := range []string{`{"names":["Lg==","YS9i"]}`, `{"names":["Li4="]}`, `{"name":"Lg==","rate_bytes_per_second":-1}`, `{"name":"YS9i","in_background":true}`, `[`} {
			f.Add(uint8(i), "", []byte(body))
		}
	}
	f.Fuzz(func(t *testing.T, path uint8, query string, body []byte) {
		d.Warmed.Store(nil)
		d.Refreshed.Store(nil)
		d.Scrubbed.Store(nil)
		method := http.MethodPost
		if len(body) == 0 {
			method = http.MethodGet
		}
		url := "http://" + listener.Addr().String() + paths[int(path)%len(paths)] + query
		req, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(body))
		if err != nil || strings.Contains(req.URL.RequestURI(), " ") { // net/http closes the connection, often before the client has its answer
			return
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		answer, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode >= 500 {
			t.Errorf("status %d, %q, error %v", resp.StatusCode, answer, err)
		}
		var names []string
		for _, got := range []*[]string{d.Warmed.Load(), d.Refreshed.Load()} {
			if got != nil {
				names = append(names, *got...)
			}
		}
		if got := d.Scrubbed.Load(); got != nil {
			names = append(names, string(got.Name))
		}
		for _, name := range names {
			if !drivers.ValidName(name) {
				t.Errorf("the daemon got the name %q", name)
			}
		}
		if resp.StatusCode == http.StatusBadRequest && strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") {
			var failure control.Failure
			if err := json.Unmarshal(answer, &failure); err != nil || failure.Message == "" || failure.Code != exit.Usage {
				t.Errorf("%q: %v", answer, err)
			}
		}
	})
}
