package blobtest

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// Time-outs for servers, long enough for a busy machine.
const (
	startTimeout = 60 * time.Second
	stopTimeout  = 10 * time.Second
)

// program returns the path of a server. The test fails if it is not installed.
func program(t testing.TB, name string) string {
	t.Helper()
	path, err := drivertest.Installed(name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// A process is a server that runs until the test ends. It is killed too when this
// process dies.
type process struct {
	cmd  *exec.Cmd
	out  tailBuffer
	done chan struct{} // closed when the process has ended
}

// launch starts a server on a free port. It returns the address when the server
// responds there.
func launch(t testing.TB, command func(host, port string) *exec.Cmd) string {
	t.Helper()
	var p *process
	for range 3 { // another process can take the port before the server does
		host, port := freePort(t)
		p = run(t, command(host, port))
		if address := net.JoinHostPort(host, port); p.waitReady(address) {
			return address
		}
	}
	t.Fatalf("%s does not respond, %v:\n%s", p.cmd.Path, p.cmd.ProcessState, p.out.String())
	return ""
}

// freePort returns an address that no process listens on.
func freePort(t testing.TB) (host, port string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	host, port, err = net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return host, port
}

// run starts cmd. Its process group is killed when the test ends.
func run(t testing.TB, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{cmd: cmd, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.out, &p.out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = stopTimeout
	started := make(chan error)
	go p.supervise(started)
	if err := <-started; err != nil {
		t.Fatalf("start a server: %v", err)
	}
	t.Cleanup(func() {
		p.stop()
		if t.Failed() {
			t.Logf("end of the output of %s:\n%s", cmd.Path, p.out.String())
		}
	})
	return p
}

// supervise starts the process and returns when it has ended. It sends the result of
// the start to started. It locks its thread: the kernel sends Pdeathsig when the thread
// that started the process ends, and the Go runtime may end threads.
func (p *process) supervise(started chan<- error) {
	defer close(p.done)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	if err := p.cmd.Wait(); err != nil {
		fmt.Fprintln(&p.out, err)
	}
}

// stop kills the process group and waits for the process.
func (p *process) stop() {
	// It is no error if the process has ended already.
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.done
}

// waitReady waits until the server sends any response to an HTTP request. It reports
// false if the process ends first, or after startTimeout.
func (p *process) waitReady(address string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for ctx.Err() == nil {
		if ping(ctx, client, "http://"+address+"/") == nil {
			return true
		}
		select {
		case <-p.done:
			return false
		case <-time.After(20 * time.Millisecond):
		}
	}
	return false
}

// ping returns nil if the server sends a response.
func ping(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// A tailBuffer keeps the end of the data that is written to it. Its methods may be
// called concurrently.
type tailBuffer struct {
	mu   sync.Mutex // guards the following
	data []byte
}

// tailSize is the number of bytes that a tailBuffer keeps, at least.
const tailSize = 16 << 10

func (b *tailBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.data = append(b.data, p...)
	if extra := len(b.data) - tailSize; extra > tailSize {
		b.data = append([]byte(nil), b.data[extra:]...)
	}
	return len(p), nil
}

func (b *tailBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.data)
}
