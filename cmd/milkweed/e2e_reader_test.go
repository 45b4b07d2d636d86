package main

import (
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// readerEnv is an environment variable for the test binary. If it is set, the binary is the process
// of a fileReader.
const readerEnv = "MILKWEED_TEST_READER"

// A fileReader is a process that reads files of mounts. A test does not open them itself: a process
// that another test starts at the same time has a copy of the open file until it executes its program,
// and umount finds the mount in use.
type fileReader struct {
	requests *gob.Encoder // of readRequest
	answers  *gob.Decoder // of readAnswer
}

type readRequest struct {
	Path     string
	Uncached bool // without the page cache
}

type readAnswer struct {
	Data  []byte
	Errno syscall.Errno // 0: there was no error
}

// newFileReader starts the process. It ends with the test.
func newFileReader(t testing.TB) *fileReader {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), readerEnv+"=1")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return &fileReader{gob.NewEncoder(stdin), gob.NewDecoder(stdout)}
}

var errHangs = errors.New("it hangs")

// read reads a file, which is closed when read returns. After 30 s it returns errHangs. One read at a
// time may be in progress.
func (r *fileReader) read(path string, uncached bool) ([]byte, error) {
	var a readAnswer
	ended := make(chan error, 1)
	go func() {
		if err := r.requests.Encode(readRequest{path, uncached}); err != nil {
			ended <- err
			return
		}
		ended <- r.answers.Decode(&a)
	}()
	select {
	case err := <-ended:
		if err != nil {
			return nil, fmt.Errorf("the process that reads %s: %w", path, err)
		}
	case <-time.After(30 * time.Second):
		return nil, fmt.Errorf("read %s: %w", path, errHangs)
	}
	if a.Errno != 0 {
		return nil, &fs.PathError{Op: "read", Path: path, Err: a.Errno}
	}
	return a.Data, nil
}

// serveReads is the process of a fileReader. It returns the exit code.
func serveReads() int {
	requests, answers := gob.NewDecoder(os.Stdin), gob.NewEncoder(os.Stdout)
	for {
		var r readRequest
		err := requests.Decode(&r)
		if err == io.EOF {
			return 0
		}
		var a readAnswer
		if err == nil {
			a, err = r.serve()
		}
		if err == nil {
			err = answers.Encode(a)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
}

func (r readRequest) serve() (a readAnswer, err error) {
	a.Data, err = r.read()
	if errors.As(err, &a.Errno) {
		err = nil
	}
	return a, err
}

func (r readRequest) read() ([]byte, error) {
	f, err := os.Open(r.Path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if r.Uncached {
		if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
			return nil, err
		}
	}
	return io.ReadAll(f)
}
