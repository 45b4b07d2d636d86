package control_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/control/controltest"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
	"github.com/milkweedfs/milkweed/placement"
)

// The paths of a plan arrive in their order, in parts that follow each other, with any bytes except
// NUL.
func TestPlan(t *testing.T) {
	d := &controltest.Daemon{State: control.Plan{
		PlanStats: placement.PlanStats{PlanCounters: placement.PlanCounters{Opens: 7}, StreamCount: 1, Entries: 3},
		Streams:   []placement.PlanStream{{Name: "r&1", Epoch: 2, Position: 5, Lead: 4}},
	}}
	c := dial(t, d)
	var want []string
	for i := range 3000 {
		want = append(want, fmt.Sprintf("d %d/\xff\n%d", i%7, i))
	}
	want[17] = "bad"
	r, err := c.AddPlan(t.Context(), placement.PlanPart{Stream: "r&1", Epoch: 2, From: 5, Lead: 9}, want)
	if want := (placement.PlanResult{Accepted: 2999, Rejected: 1, Errors: []string{"bad path"}}); err != nil || !reflect.DeepEqual(r, want) {
		t.Errorf("got %+v, %v, want %+v", r, err, want)
	}
	parts, paths, _ := d.Planned.Calls()
	if !reflect.DeepEqual(paths, want) {
		t.Error("the paths differ")
	}
	from := int64(5)
	for _, p := range parts {
		if want := (placement.PlanPart{Stream: "r&1", Epoch: 2, From: from, Lead: 9}); p != want {
			t.Errorf("got %+v, want %+v", p, want)
		}
		from += 1024
	}
	// An empty body forgets the entries from one on.
	if r, err := c.AddPlan(t.Context(), placement.PlanPart{From: 7}, nil); err != nil || r.Accepted != 0 {
		t.Errorf("an empty part: %+v, %v", r, err)
	}
	if parts, _, _ := d.Planned.Calls(); parts[len(parts)-1] != (placement.PlanPart{From: 7}) {
		t.Errorf("an empty part: %+v", parts)
	}
	if got, err := c.Plan(t.Context()); err != nil || !reflect.DeepEqual(got, d.State) {
		t.Errorf("got %+v, %v, want %+v", got, err, d.State)
	}
	for _, stream := range []string{"r&1", ""} {
		if err := c.DropPlan(t.Context(), &stream); err != nil {
			t.Error(err)
		}
	}
	if err := c.DropPlan(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if _, _, drops := d.Planned.Calls(); !reflect.DeepEqual(drops, []string{"r&1", "", "*"}) {
		t.Errorf("dropped %q", drops)
	}
}

// request sends one HTTP request to the socket of the mount point, and returns its status and body.
func request(t *testing.T, text string, body io.Reader) (int, string) {
	t.Helper()
	sockets, _ := filepath.Glob(filepath.Join(os.Getenv(control.FolderEnv), "*.sock"))
	conn, err := net.Dial("unix", sockets[0])
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	req, err := http.NewRequest(strings.Fields(text)[0], "http://x"+strings.Fields(text)[1], body)
	if err != nil {
		t.Fatal(err)
	}
	go req.Write(conn) // the server may respond before it has read all
	resp, err := http.ReadResponse(bufio.NewReader(conn), req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	reply, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(reply)
}

// A request that is not a plan, or too large, is refused with a reason.
func TestPlanRefused(t *testing.T) {
	d := &controltest.Daemon{}
	dial(t, d)
	for query, want := range map[string]string{
		"epoch=x": `epoch: \"x\" is not a number`, "from=-1": `from: \"-1\" is not a number`, "lead=1.5": "lead: ",
		"stream=%ff": "is not UTF-8", "from=99999999999999999999": "from: ",
	} {
		code, reply := request(t, "POST /v1/plan?"+query, strings.NewReader("a\x00"))
		if code != http.StatusBadRequest || !strings.Contains(reply, want) {
			t.Errorf("%s: got %d, %s, want %q", query, code, reply, want)
		}
	}
	if parts, _, _ := d.Planned.Calls(); len(parts) != 0 {
		t.Errorf("got %+v", parts)
	}
	// A path that is too long does not become two. It is passed on, to be counted.
	long := strings.Repeat("x", 20<<10)
	if code, reply := request(t, "POST /v1/plan", strings.NewReader("a\x00"+long+"\x00b")); code != http.StatusOK {
		t.Errorf("got %d, %s", code, reply)
	}
	if _, paths, _ := d.Planned.Calls(); len(paths) != 3 || len(paths[1]) <= 4096 || paths[2] != "b" {
		t.Errorf("got %d paths", len(paths))
	}
	if code, reply := request(t, "POST /v1/plan", strings.NewReader(strings.Repeat("x", 65<<20))); code != http.StatusBadRequest || !strings.Contains(reply, "more than 64 MiB") {
		t.Errorf("a body of 65 MiB: got %d, %s", code, reply)
	}
	if code, reply := request(t, "POST /v1/plan", strings.NewReader(strings.Repeat("\x00", 1_002_000))); code != http.StatusBadRequest || !strings.Contains(reply, "more than 1000000 paths") {
		t.Errorf("a million paths: got %d, %s", code, reply)
	}
}

// The socket refuses every user but root and its owner, even if its mode and that of its directory
// were changed.
func TestOtherUsersAreRefused(t *testing.T) {
	drivertest.Need(t, "root")
	d := &controltest.Daemon{}
	dial(t, d)
	folder := os.Getenv(control.FolderEnv)
	sockets, _ := filepath.Glob(filepath.Join(folder, "*.sock"))
	for path, mode := range map[string]os.FileMode{folder: 0o755, sockets[0]: 0o777} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	got := make(chan string)
	go func() { // the user is that of a thread, which ends with the goroutine
		runtime.LockOSThread()
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, 77, 77, 77); e != 0 {
			got <- e.Error()
			return
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err == nil {
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: sockets[0]})
		}
		if err != nil {
			got <- err.Error()
			return
		}
		unix.Write(fd, []byte("POST /v1/plan HTTP/1.0\r\nContent-Length: 2\r\n\r\na\x00"))
		reply := make([]byte, 1000)
		n, _ := unix.Read(fd, reply)
		unix.Close(fd)
		got <- string(reply[:max(n, 0)])
	}()
	if reply := <-got; !strings.Contains(reply, "403 Forbidden") || !strings.Contains(reply, "only root, the user who has mounted, and users who may read the mount") {
		t.Errorf("got %q", reply)
	}
	if parts, _, _ := d.Planned.Calls(); len(parts) != 0 {
		t.Errorf("got %+v", parts)
	}
	if code, reply := request(t, "POST /v1/plan", strings.NewReader("a\x00")); code != http.StatusOK {
		t.Errorf("root: got %d, %s", code, reply)
	}
}
