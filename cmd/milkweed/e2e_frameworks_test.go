package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/child"
	"github.com/milkweedfs/milkweed/cmd/internal/simpfs"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// A framework is a process of Python that reads datasets with the libraries of an environment. What it
// does is in testdata/frameworks.
type framework struct {
	s       *site
	cmd     *exec.Cmd
	process *child.Process
}

// framework starts a process with a module of testdata/frameworks. environment is one that .ci/deps.sh
// installs.
func (s *site) framework(environment, module string, env ...string) *framework {
	s.t.Helper()
	interpreter, err := drivertest.Python(environment)
	s.check(err)
	script, err := filepath.Abs("testdata/frameworks/" + module)
	s.check(err)
	temporary := s.dir + "/temporary" // a process that is killed leaves files there
	s.check(os.MkdirAll(temporary, 0o755))
	f := &framework{s: s, cmd: exec.CommandContext(s.t.Context(), interpreter, "-B", script)} // it runs longer than a command
	f.cmd.Env = slices.Concat(s.env, []string{"TMPDIR=" + temporary}, env)
	f.process, err = child.Start(f.cmd)
	s.check(err)
	s.t.Cleanup(func() { f.process.Stop() })
	return f
}

// A trialReply is what a trial has found, or the exception that has ended it.
type trialReply struct {
	Result any
	Error  string
}

// ask sends a request and does not wait for the reply.
func (f *framework) ask(do, trial, data string, epoch int) {
	f.s.t.Helper()
	f.s.check(f.process.Send(map[string]any{"do": do, "trial": trial, "data": data, "epoch": epoch}))
}

// do returns the result of a request, which must succeed.
func (f *framework) do(do, trial, data string, epoch int) any {
	f.s.t.Helper()
	f.ask(do, trial, data, epoch)
	return f.result(trial)
}

// result waits for the reply to a request, which must have succeeded.
func (f *framework) result(trial string) any {
	f.s.t.Helper()
	var r trialReply
	f.s.check(f.process.Receive(&r))
	if r.Error != "" {
		f.s.t.Fatalf("%s: %s", trial, r.Error)
	}
	return r.Result
}

// A countedPFS is a PFS whose operations are counted.
type countedPFS struct {
	s       *site
	cmd     *exec.Cmd
	process *child.Process
}

// countedPFS mounts a folder as a PFS, which becomes the source. Its clients keep names for long, so
// that the number of operations does not depend on the time that a trial takes, unless more flags say
// otherwise.
func (s *site) countedPFS(folder, bandwidth string, more ...string) *countedPFS {
	s.t.Helper()
	point := s.dir + "/pfs"
	s.check(os.MkdirAll(point, 0o755))
	words := []string{s.program, "demo", "pfs", folder, point, "--latency", "0s", "--bandwidth", bandwidth, "--ttl", "1h"}
	p := &countedPFS{s: s, cmd: s.command(append(words, more...)...)}
	var err error
	p.process, err = child.Start(p.cmd)
	s.check(err)
	s.t.Cleanup(func() {
		p.cmd.Process.Signal(unix.SIGCONT) // a failed test may have stopped it, or ended it
		p.process.Stop()
	})
	p.use() // the first reply comes when it is mounted
	s.source = point
	return p
}

// use returns the operations so far.
func (p *countedPFS) use() (use simpfs.Use) {
	p.s.t.Helper()
	p.s.check(p.process.Send(struct{}{}))
	p.s.check(p.process.Receive(&use))
	return use
}

// signal stops or resumes the process of the PFS.
func (p *countedPFS) signal(signal os.Signal) {
	p.s.t.Helper()
	p.s.check(p.cmd.Process.Signal(signal))
}

// end unmounts the PFS.
func (p *countedPFS) end() {
	p.s.t.Helper()
	p.s.check(p.process.Stop())
}

const (
	fastPFS = "2GB"
	slowPFS = "2MB" // an epoch takes seconds, and has a middle
)

// A trial is one of testdata/frameworks. Its dataset is the folder of its name below the folder all.
type trial struct {
	*framework
	name, all string
	most      simpfs.Use    // the first epoch may have more operations than direct reading by so many
	partial   bool          // it does not open all files
	want      [2]any        // the results of two epochs that read the PFS itself
	use       [2]simpfs.Use // the operations of them
	refusals  any           // the errors on a read-only bind mount, by what was tried
}

func (c *trial) folder() string { return filepath.Join(c.all, c.name) }

// prepare makes the dataset of the trial, and reads it directly.
func (c *trial) prepare() {
	s := c.s
	s.t.Helper()
	c.do("make", c.name, c.folder(), 0)
	pfs := s.countedPFS(c.folder(), fastPFS)
	for epoch := range c.want {
		before := pfs.use()
		c.want[epoch] = c.do("read", c.name, s.source, epoch)
		c.use[epoch] = pfs.use().Sub(before)
	}
	pfs.end()

	readOnly := s.dir + "/readonly"
	s.sh(`mkdir -p "$2" && mount --bind "$1" "$2" && mount -o remount,bind,ro "$2"`, c.folder(), readOnly)
	c.refusals = c.do("errors", c.name, readOnly, 0)
	s.sh(`umount "$1"`, readOnly)
}

// run reads the dataset in two epochs through a mount in a mode. In the first, each byte is read from
// the source once, and in the second nothing. What the trial computes, and the errors of a program that
// tries to write, are those without the mount.
func (c *trial) run(mode string) {
	s := c.s
	s.t.Helper()
	dataset := total(s.files(c.folder()))
	pfs := s.countedPFS(c.folder(), fastPFS)
	s.mountWith("mode="+mode, "1GiB")
	for epoch, want := range c.want {
		before, counted := s.status().Source, pfs.use()
		if got := c.do("read", c.name, s.point, epoch); !reflect.DeepEqual(got, want) {
			s.t.Errorf("%s, %s, epoch %d: got %v, read directly %v", c.name, mode, epoch+1, got, want)
		}
		after := s.closed().Source
		use := pfs.use().Sub(counted)
		s.t.Logf("%s, %s, epoch %d: source %.2f, %+v; direct %+v", c.name, mode, epoch+1, float64(after.Bytes-before.Bytes)/float64(dataset), use, c.use[epoch])
		if epoch > 0 {
			if after.Bytes != before.Bytes || after.Opens != before.Opens || after.Reads != before.Reads {
				s.t.Errorf("%s, %s, epoch %d: %d bytes of the source, %d opens, %d reads; want none", c.name, mode, epoch+1,
					after.Bytes-before.Bytes, after.Opens-before.Opens, after.Reads-before.Reads)
			}
			continue
		}
		got, placed := after.Bytes-before.Bytes, s.status().Placement.PlacedBytes
		if got != placed || got > dataset || got != dataset && !c.partial {
			s.t.Errorf("%s, %s, first epoch: %d bytes of the source, and %d placed; want the %d of the dataset", c.name, mode, got, placed, dataset)
		}
		over := use.Sub(c.use[epoch]).Sub(c.most)
		// The kernel divides reads of the PFS, and on a busy machine repeats some whose pages it has dropped.
		over.Reads -= c.use[epoch].Reads/50 + 1
		if max(over.Lookups, over.Getattrs, over.Opens, over.Reads, over.Lists, over.Others) > 0 {
			s.t.Errorf("%s, %s, first epoch: operations of the source: got %+v, direct %+v", c.name, mode, use, c.use[epoch])
		}
	}
	refusals := c.do("errors", c.name, s.point, 0).(map[string]any)
	for tried, want := range c.refusals.(map[string]any) {
		if got := refusals[tried]; got != want {
			s.t.Errorf("%s, %s: %s: got %v, on a read-only bind mount %v", c.name, mode, tried, got, want)
		}
	}
	s.umount()
	s.emptyTiers()
	pfs.end()
}

// middle starts an epoch on a mount of a slow PFS, and returns when it has read a part of the dataset.
func (c *trial) middle() *countedPFS {
	s := c.s
	s.t.Helper()
	dataset := total(s.files(c.folder()))
	pfs := s.countedPFS(c.folder(), slowPFS)
	s.mount("1GiB")
	c.ask("read", c.name, s.point, 0)
	s.eventually("a tenth of the dataset was read", func() bool { return s.status().Source.Bytes > dataset/10 })
	return pfs
}

// hang lets the source hang in the middle of an epoch. The program waits, and then has the right
// result.
func (c *trial) hang() {
	s := c.s
	s.t.Helper()
	dataset, pfs := total(s.files(c.folder())), c.middle()
	pfs.signal(unix.SIGSTOP)
	s.eventually("a read waits for the source", func() bool { return s.status().OldestRequestSeconds > 1 })
	if got := s.status().Source.Bytes; got >= dataset {
		s.t.Fatalf("%s: the epoch was over before the source hung: %d bytes", c.name, got)
	}
	pfs.signal(unix.SIGCONT)
	if got := c.result(c.name); !reflect.DeepEqual(got, c.want[0]) {
		s.t.Errorf("%s: after the source hung: got %v, want %v", c.name, got, c.want[0])
	}
	s.closed()
	s.umount()
	s.emptyTiers()
	pfs.end()
}

// kill kills the daemon in the middle of an epoch. The program reports an error of the file system, or,
// if it maps files into memory, may be ended by SIGBUS. The process is no longer used.
func (c *trial) kill() {
	s := c.s
	s.t.Helper()
	pfs := c.middle()
	s.check(unix.Kill(s.status().PID, unix.SIGKILL))
	var r trialReply
	switch err := c.process.Receive(&r); {
	case err != nil:
		state, ok := c.cmd.ProcessState.Sys().(syscall.WaitStatus)
		if !ok || !state.Signaled() || state.Signal() != unix.SIGBUS {
			s.t.Errorf("%s: the process has ended when the daemon was killed: %v", c.name, err)
		}
		s.t.Logf("%s: killed by SIGBUS", c.name)
	case !slices.ContainsFunc([]unix.Errno{unix.ENOTCONN, unix.ECONNABORTED, unix.EIO}, func(e unix.Errno) bool {
		return strings.Contains(strings.ToLower(r.Error), e.Error())
	}):
		s.t.Errorf("%s: when the daemon was killed, the program reported %q, and computed %v", c.name, r.Error, r.Result)
	default:
		s.t.Logf("%s: %s", c.name, r.Error)
		s.check(c.process.Stop())
	}
	s.eventually("the kernel has aborted the mount", func() bool { return unix.Statfs(s.point, new(unix.Statfs_t)) == unix.ENOTCONN })
	s.umount()
	s.mount("1GiB") // it removes what the killed daemon has left
	s.umount()
	s.emptyTiers()
	pfs.end()
}

// trials prepares trials of a process, whose datasets are in a new folder.
func (f *framework) trials(names ...string) (all []*trial) {
	f.s.t.Helper()
	for _, name := range names {
		c := &trial{framework: f, name: name, all: f.s.dir + "/datasets"}
		c.prepare()
		all = append(all, c)
	}
	return all
}

// inAllModes runs a trial in each mode.
func (c *trial) inAllModes() {
	c.s.t.Helper()
	for _, mode := range []string{"passthrough", "stateless", "cached"} {
		c.run(mode)
	}
}

// end ends processes, and fails the test if a mount has left something.
func (s *site) end(frameworks ...*framework) {
	s.t.Helper()
	for _, f := range frameworks {
		s.check(f.process.Stop())
	}
	s.eventually("the processes that libraries have started have ended", func() bool { return len(s.processes()) == 0 })
	s.wantNothing()
}

// TensorFlow and Keras compute the same from a mount as from the source, to the last bit, and read each
// byte of the source once. They wait for a source that hangs, and report that the daemon has ended.
//
//suite:check
func TestFrameworksTensorFlow(t *testing.T) {
	drivertest.Need(t, "venv-tensorflow")
	s := newSite(t)
	f := s.framework("tensorflow", "with_tensorflow.py")
	all := f.trials("records", "images", "tf.data", "tf.data service")
	for _, c := range all {
		c.inAllModes()
	}
	all[0].hang()
	all[0].kill()
	s.end()
}

// Two workers of a strategy of TensorFlow, each of which reads its share of the files of one mount,
// compute the same as without it, and read each byte of the source once.
//
//suite:check
func TestFrameworksWorkers(t *testing.T) {
	drivertest.Need(t, "venv-tensorflow")
	s := newSite(t)
	addresses := []string{freeAddress(t), freeAddress(t)}
	var workers [2]*framework
	for i := range workers {
		config, err := json.Marshal(map[string]any{
			"cluster": map[string]any{"worker": addresses}, "task": map[string]any{"type": "worker", "index": i}})
		s.check(err)
		workers[i] = s.framework("tensorflow", "with_tensorflow.py", "TF_CONFIG="+string(config))
	}
	const name = "two workers"
	epoch := func(data string, epoch int) (results [2]any) {
		for _, f := range workers {
			f.ask("read", name, data, epoch)
		}
		for i, f := range workers {
			results[i] = f.result(name)
		}
		return results
	}
	workers[0].do("make", name, s.source, 0)
	want := [2][2]any{epoch(s.source, 0), epoch(s.source, 1)}
	s.mount("1GiB")
	for n := range want {
		if got := epoch(s.point, n); !reflect.DeepEqual(got, want[n]) {
			t.Errorf("epoch %d: got %v, want %v", n+1, got, want[n])
		}
		if got, want := s.closed().Source.Bytes, total(s.files(s.source)); got != want {
			t.Errorf("bytes of the source after epoch %d: got %d, want %d", n+1, got, want)
		}
	}
	s.umount()
	s.end(workers[:]...)
}

// Hugging Face datasets, and libraries for files of one format, read the same from a mount as from the
// source, and each byte of the source once. They wait for a source that hangs, and report that the
// daemon has ended.
//
//suite:check
func TestFrameworksHuggingFace(t *testing.T) {
	drivertest.Need(t, "venv-huggingface")
	s := newSite(t)
	f := s.framework("huggingface", "with_huggingface.py")
	all := f.trials("arrow", "parquet", "streaming", "images", "pyarrow", "duckdb", "safetensors", "h5py", "zarr", "lmdb", "webdataset")
	for _, c := range all {
		c.inAllModes()
	}
	webdataset := all[10]
	webdataset.hang()
	webdataset.kill()
	for _, c := range []*trial{all[0], all[9]} { // arrow and lmdb map files into memory
		c.framework = s.framework("huggingface", "with_huggingface.py")
		c.kill()
	}
	s.end()
}

// JAX, grain, orbax and TensorStore read the same from a mount as from the source, and each byte of the
// source once.
//
//suite:soak
func TestFrameworksJAX(t *testing.T) {
	drivertest.Need(t, "venv-jax")
	s := newSite(t)
	f := s.framework("jax", "with_jax.py")
	all := f.trials("array_record", "orbax", "tensorstore")
	orbax, tensorstore := all[1], all[2]
	orbax.partial = true
	tensorstore.most = simpfs.Use{Opens: 64, Lists: 1 + 8 + 64} // the folders of the chunks may be listed ahead
	for _, c := range all {
		c.inAllModes()
	}
	s.end(f)
}

// A recent PyTorch, and MosaicML streaming, compute the same from a mount as from the source, and read
// each byte of the source once.
//
//suite:soak
func TestFrameworksTorch(t *testing.T) {
	drivertest.Need(t, "venv-torch")
	s := newSite(t)
	f := s.framework("torch", "with_torch.py")
	for _, c := range f.trials("images", "checkpoint", "mosaicml remote", "mosaicml local") {
		c.inAllModes()
	}
	s.end(f)
}
