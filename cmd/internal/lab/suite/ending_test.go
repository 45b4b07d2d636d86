package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// timeOver returns a context whose time is over as soon as all files exist.
func timeOver(t *testing.T, files ...string) context.Context {
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan struct{})
	t.Cleanup(func() { cancel(nil); <-done })
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if !slices.ContainsFunc(files, func(f string) bool { _, err := os.Stat(f); return err != nil }) {
				cancel(overError{"the test", 80 * time.Minute})
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	return ctx
}

// When the time of a run is over, its result names the tests that were running and where they waited,
// also if one of them or a child of it ignores signals, and the steps that were not run.
func TestDeadline(t *testing.T) {
	dir, folder := module(t, map[string]string{
		"a/a_test.go": `package a
import ("os"; "testing")
func TestGood(t *testing.T) {}
func TestHangs(t *testing.T) { t.Run("deep", func(t *testing.T) { t.Log("a word"); waitForEver(t) }) }
func waitForEver(t *testing.T) { os.WriteFile(os.Getenv("FOLDER")+"/a", nil, 0o644); select {} }
`,
		"b/b_test.go": `package b
import ("os"; "os/exec"; "os/signal"; "syscall"; "testing")
func TestDeaf(t *testing.T) {
	signal.Ignore(syscall.SIGQUIT, syscall.SIGTERM)
	child := exec.Command("sh", "-c", "trap '' QUIT TERM; echo $$ >$FOLDER/pid; mv $FOLDER/pid $FOLDER/b; sleep 1000")
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	child.Run()
}
`,
		"c/c_test.go": `package c
import ("os"; "os/exec"; "syscall"; "testing")
func TestQuits(t *testing.T) {
	child := exec.Command("sh", "-c", "trap '' QUIT TERM; touch $FOLDER/c; sleep 1000")
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	child.Run()
}
`,
	}), t.TempDir()
	s := suite{steps: []step{
		{part: "tests", name: "tests", goTest: true, env: []string{"FOLDER=" + folder}, words: goTest("-p=3", "-count=1", "./...")},
		{part: "later", name: "later", words: []string{"touch", folder + "/later"}},
	}}
	var out bytes.Buffer
	results := dir + "/build/suite"
	code, err := runSuite(timeOver(t, folder+"/a", folder+"/b", folder+"/c"), s, "check", dir, results, false, 0, time.Hour, &out)
	if code != 1 || err != nil {
		t.Fatalf("exit code %d, %v\n%s", code, err, &out)
	}
	_, text, _ := strings.Cut(out.String(), "FAILED after")
	for _, want := range []string{
		"a.TestHangs/deep", "waitForEver", "go test -count=1 -run '^TestHangs$' ./a", "b.TestDeaf", "c.TestQuits", "c_test.go:7",
		"ended after 1h20m0s, the limit of the test", "not run, because the time was over; -resume continues with them: later",
		"tests: 1 passed, 4 failed, 0 skipped",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the report lacks %q", want)
		}
	}
	if n := strings.Count(text, "\n"); n > reportLines+1 {
		t.Errorf("the report has %d lines", n)
	}
	files, _ := filepath.Glob(results + "/*.jsonl")
	all, err := readResults(files[0])
	if err != nil || len(all) != 1 || len(all[0].Failed) != 3 || !strings.Contains(all[0].Error, "trap '' QUIT TERM") {
		t.Errorf("results %+v, %v", all, err)
	}
	if _, err := os.Stat(folder + "/later"); err == nil {
		t.Error("a step was run when the time was over")
	}
	pid, err := os.ReadFile(folder + "/b")
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(pid)))
	if err != nil {
		t.Fatal(err)
	}
	if state := processState(n); state != "ended" && state[0] != 'Z' {
		t.Errorf("process %d has not ended: %s", n, state)
	}
	if t.Failed() {
		t.Log(out.String())
	}
}

// The time of a step may be over before that of the run. Its processes are killed if they ignore signals,
// and the next step is run.
func TestLimitOfStep(t *testing.T) {
	r := newRunner(t, module(t, map[string]string{}))
	r.grace = 100 * time.Millisecond
	begun := t.TempDir() + "/begun"
	got, err := r.run(timeOver(t, begun), step{name: "deaf", words: []string{"sh", "-c", "trap '' QUIT TERM; echo last words; touch " + begun + "; while :; do sleep 1000; done"}})
	if err != nil || !strings.Contains(got.Error, "ended after 1h20m0s") || !strings.Contains(got.Error, "last words") || !strings.Contains(got.Error, "sleep 1000") {
		t.Errorf("got %+v, %v", got, err)
	}
	got, err = r.run(t.Context(), step{name: "slow", words: []string{"sleep", "1000"}, limit: time.Millisecond})
	if err != nil || !strings.Contains(got.Error, "ended after 1ms, the limit of this step") {
		t.Errorf("got %+v, %v", got, err)
	}
	if left := r.processes(); len(left) > 0 {
		t.Errorf("left %v", left)
	}
	if got, err := r.run(t.Context(), step{name: "next", words: []string{"true"}}); err != nil || !got.ok() {
		t.Errorf("the next step: %+v, %v", got, err)
	}
}

// A step that has ended does not wait for a process that holds its output.
func TestOutputHeld(t *testing.T) {
	r := newRunner(t, module(t, map[string]string{}))
	r.grace = 100 * time.Millisecond
	for _, goTest := range []bool{false, true} {
		got, err := r.run(t.Context(), step{name: "step", goTest: goTest, words: []string{"sh", "-c", "sleep 1000 & echo begun"}})
		if err != nil || !strings.Contains(got.Error, "holds its output") || len(got.Left) != 1 {
			t.Errorf("got %+v, %v", got, err)
		}
	}
}

// silentServer is a FUSE server that answers no request for attributes before release is closed.
type silentServer struct {
	fuse.RawFileSystem
	asked, release chan struct{}
}

func (s *silentServer) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	close(s.asked)
	<-s.release
	return fuse.EIO
}

// A process that waits for a mount of the step, and that SIGKILL therefore does not end, is ended.
func TestLimitOfAHungMount(t *testing.T) {
	drivertest.Need(t, "root", "/dev/fuse")
	r := newRunner(t, module(t, map[string]string{}))
	r.grace = time.Second
	point, asked := r.temp()+"/m", t.TempDir()+"/asked"
	if err := os.Mkdir(point, 0o755); err != nil {
		t.Fatal(err)
	}
	silent := &silentServer{fuse.NewDefaultRawFileSystem(), make(chan struct{}), make(chan struct{})}
	server, err := fuse.NewServer(silent, point, &fuse.MountOptions{DirectMountStrict: true})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() { server.Serve(); close(served) }()
	if err := server.WaitMount(); err != nil {
		t.Fatal(err)
	}
	noted := make(chan error, 1)
	go func() { <-silent.asked; noted <- os.WriteFile(asked, nil, 0o644) }()
	got, err := r.run(timeOver(t, asked), step{name: "step", words: []string{"stat", point}})
	if err != nil || !strings.Contains(got.Error, "ended after") || strings.Contains(got.Error, "does not end") {
		t.Errorf("got %+v, %v", got, err)
	}
	close(silent.release)
	<-served
	if err := <-noted; err != nil {
		t.Error(err)
	}
}

func TestWithin(t *testing.T) {
	hang := make(chan struct{})
	defer close(hang)
	if err := within(time.Millisecond, "the umount", func() error { <-hang; return nil }); err == nil || err.Error() != "the umount has not ended within 1ms" {
		t.Errorf("a call that hangs: %v", err)
	}
	want := errors.New("it failed")
	if err := within(time.Minute, "the umount", func() error { return want }); err != want {
		t.Errorf("got %v", err)
	}
	for command, want := range map[string]time.Duration{"test": 15 * time.Minute, "check": 80 * time.Minute, "soak": 0} {
		if got := defaultDeadline(command, 0); got != want {
			t.Errorf("the deadline of %s is %v, want %v", command, got, want)
		}
	}
	if got := defaultDeadline("soak", time.Hour); got != 5*time.Hour {
		t.Errorf("the deadline of soak -for 1h is %v", got)
	}
}
