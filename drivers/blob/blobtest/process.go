package blobtest

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Folder is where in the user's cache folder .ci/deps.sh installs the servers.
const Folder = "milkweed-test"

// What the tests must have done within, on a machine that is busy.
const (
	startTime = 60 * time.Second
	stopTime  = 10 * time.Second
)

// cache is the user's cache folder, as it was before a test changed HOME.
var cache, cacheErr = os.UserCacheDir()

// program returns the path of a server. If there is none the test fails.
func program(t testing.TB, name string) string {
	t.Helper()
	if cacheErr != nil {
		t.Fatalf("find %s: %v", name, cacheErr)
	}
	path, err := find(filepath.Join(cache, Folder), name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// find returns the path of a program that .ci/deps.sh has installed in folder, or
// of one that is in $PATH.
func find(folder, name string) (string, error) {
	if path, err := exec.LookPath(filepath.Join(folder, "bin", name)); err == nil {
		return path, nil
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%w; run make deps", err)
	}
	return path, nil
}

// A process is a server that runs until the test ends, or until this process
// does, however it ends.
type process struct {
	cmd  *exec.Cmd
	out  tail
	done chan struct{} // closed when the process has ended
}

// launch runs a server that listens at an address of its own, and returns the
// address when the server answers there.
func launch(t testing.TB, command func(host, port string) *exec.Cmd) string {
	t.Helper()
	var p *process
	for range 3 { // somebody else can take the port before the server does
		host, port := freePort(t)
		p = run(t, command(host, port))
		if address := net.JoinHostPort(host, port); p.answers(address) {
			return address
		}
	}
	t.Fatalf("%s does not answer, %v:\n%s", p.cmd.Path, p.cmd.ProcessState, p.out.String())
	return ""
}

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

// run starts cmd. At the end of the test it is killed, with all that it started.
func run(t testing.TB, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{cmd: cmd, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.out, &p.out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = stopTime
	started := make(chan error)
	go p.live(started)
	if err := <-started; err != nil {
		t.Fatalf("start a server: %v", err)
	}
	t.Cleanup(func() {
		p.stop()
		if t.Failed() {
			t.Logf("the last words of %s:\n%s", cmd.Path, p.out.String())
		}
	})
	return p
}

// live starts the process and returns when it has ended. It keeps a thread to
// itself: the kernel sends Pdeathsig when the thread that started the process
// ends, and Go ends threads.
func (p *process) live(started chan<- error) {
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

func (p *process) stop() {
	// That it has ended before is no error.
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.done
}

// answers waits until the server answers an HTTP request, whatever it says. It
// reports false when the process has ended or the time is up.
func (p *process) answers(address string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), startTime)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for ctx.Err() == nil {
		if ask(ctx, client, "http://"+address+"/") == nil {
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

func ask(ctx context.Context, client *http.Client, url string) error {
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

// A tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex // guards the following
	data []byte
}

// tailSize is how much a tail keeps, at least.
const tailSize = 16 << 10

func (b *tail) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.data = append(b.data, p...)
	if extra := len(b.data) - tailSize; extra > tailSize {
		b.data = append([]byte(nil), b.data[extra:]...)
	}
	return len(p), nil
}

func (b *tail) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.data)
}
