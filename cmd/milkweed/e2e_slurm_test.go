package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/lab/slurmtest"
	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// A slurmSite is a cluster whose nodes have the scripts of examples/slurm.
type slurmSite struct {
	t *testing.T
	*slurmtest.Cluster
	dataset int64 // bytes
}

const slurmConf = `PrologFlags=Alloc,DeferBatch
Prolog=/etc/slurm/prolog.d/*
Epilog=/etc/slurm/epilog.d/*
TaskProlog=/etc/slurm/taskprolog-milkweed.sh
PrologEpilogTimeout=120
KillWait=2`

// newSlurmSite makes a cluster with the dataset imagenet, of which only alice may read the folder
// private.
func newSlurmSite(t *testing.T, nodes int) *slurmSite {
	t.Helper()
	drivertest.Need(t, "root", "/dev/fuse", "nsenter", "unshare", "ip", "tc")
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	s := &slurmSite{t: t, Cluster: slurmtest.New(t, slurmtest.Options{Nodes: nodes, Programs: map[string]string{"milkweed": path}, Checkout: "../..", Conf: slurmConf})}
	s.root(`
cd /usr/share/doc/milkweed/examples/slurm
install -D -m 755 prolog-milkweed.sh /etc/slurm/prolog.d/50-milkweed
install -D -m 755 epilog-milkweed.sh /etc/slurm/epilog.d/50-milkweed
install -m 755 taskprolog-milkweed.sh /etc/slurm
mkdir -p /lustre/imagenet/private
cd /lustre/imagenet
for i in $(seq 20); do head -c 100000 /dev/urandom >$i.jpg; done
head -c 1000 /dev/urandom >private/secret.jpg
chown -R alice: private && chmod 700 private
touch -d '1 hour ago' *.jpg private/*.jpg
cat >/etc/milkweed/imagenet.toml <<'END'
[source]
path = "/lustre/imagenet"
clock_skew = "0s"
[[tier]]
name = "ram"
path = "/dev/shm/milkweed"
quota = "64MiB"
[mount]
point = "/mnt/imagenet"
allow_other = true
END`)
	s.dataset = 20*100000 + 1000
	return s
}

// root runs a script as root on the login node, and returns its output.
func (s *slurmSite) root(script string) string { return s.run(s.Command("bash"), script) }

// on runs a script as root on a node.
func (s *slurmSite) on(node int, script string) string {
	return s.run(s.OnNode(node, "bash"), script)
}

func (s *slurmSite) run(cmd *exec.Cmd, script string) string {
	s.t.Helper()
	cmd.Stdin = strings.NewReader("set -e\n" + script)
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Fatalf("%s\n%v\n%s", script, err, out)
	}
	return string(out)
}

// submit submits a job and returns its number.
func (s *slurmSite) submit(user, script string, options ...string) string {
	s.t.Helper()
	cmd := s.As(user, append([]string{"sbatch", "--parsable"}, options...)...)
	cmd.Stdin = strings.NewReader("#!/bin/bash\n" + script)
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Fatalf("%q: %v\n%s", options, err, out)
	}
	return strings.TrimSpace(string(out))
}

// job runs a job and returns its output. The job must succeed.
func (s *slurmSite) job(user, script string, options ...string) string {
	s.t.Helper()
	id := s.submit(user, script, append(options, "--wait")...)
	return s.output(user, id)
}

func (s *slurmSite) output(user, id string) string {
	s.t.Helper()
	out, err := os.ReadFile(filepath.Join(s.Folder, "shared/home", user, "slurm-"+id+".out"))
	if err != nil {
		s.t.Fatal(err)
	}
	return string(out)
}

// wait waits until a script succeeds on the login node.
func (s *slurmSite) wait(script string) {
	s.t.Helper()
	for deadline := time.Now().Add(time.Minute); s.Command("sh", "-c", script).Run() != nil; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("%s fails for a minute\n%s", script, s.root("squeue; sinfo"))
		}
	}
}

// ended waits until a job of a user has ended, and fails the test unless it is in this state.
func (s *slurmSite) ended(user, id, state string) {
	s.t.Helper()
	s.wait("! scontrol show job " + id + " | grep -wE 'JobState=(PENDING|RUNNING|COMPLETING)'")
	if got := s.root("scontrol show job " + id); !strings.Contains(got, "JobState="+state+" ") {
		s.t.Fatalf("want %s, got\n%s\nIts output:\n%s", state, got, s.output(user, id))
	}
}

// clean fails the test if the node has something of a job.
func (s *slurmSite) clean(node int) {
	s.t.Helper()
	if out, err := s.OnNode(node, "bash", "-c", `
		grep fuse.milkweed /proc/mounts && exit
		for f in /run/milkweed-slurm/*/ /mnt/imagenet; do [ "$f" = /run/milkweed-slurm/task/ ] || [ ! -e "$f" ] || { echo "$f is left"; exit; }; done
		[ -z "$(ls /run/milkweed-slurm/task 2>/dev/null)" ] || { ls /run/milkweed-slurm/task; exit; }
		for i in $(seq 100); do pgrep -f 'milkweed moun[t]' >/dev/null || exit 1; sleep 0.1; done; ps ax`).CombinedOutput(); err == nil {
		s.t.Errorf("node%d is not clean:\n%s", node, out)
	}
	if got := s.root("sinfo"); strings.Contains(got, "drained") {
		s.t.Errorf("a node is drained:\n%s", got)
	}
}

// status is the status of the mount of a node.
func (s *slurmSite) status(node int) control.Status {
	s.t.Helper()
	var status control.Status
	out := s.on(node, "milkweed status --json /mnt/imagenet")
	if err := json.Unmarshal([]byte(out), &status); err != nil {
		s.t.Fatalf("%v\n%s", err, out)
	}
	return status
}

// settled waits until the copies of the dataset on a node are complete.
func (s *slurmSite) settled(node int) {
	s.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if status := s.status(node); status.Placement.PlacedBytes == s.dataset {
			return
		} else if time.Now().After(deadline) {
			s.t.Fatalf("%d bytes are placed, want %d", status.Placement.PlacedBytes, s.dataset)
		}
	}
}

// hold is the end of the script of a job that runs until release.
const hold = "\n: >ready-$SLURM_JOB_ID; while [ ! -e go-$SLURM_JOB_ID ]; do sleep 0.02; done\n"

func (s *slurmSite) ready(user, id string) {
	s.t.Helper()
	s.wait("test -e /home/" + user + "/ready-" + id)
}
func (s *slurmSite) release(user, id string) {
	s.t.Helper()
	s.root(": >/home/" + user + "/go-" + id)
	s.ended(user, id, "COMPLETED")
}

const imagenet = "--comment=milkweed=imagenet"

// The jobs of a node get the datasets that they request, as their users may read them at the source.
// Whatever happens to a job, its node is clean afterwards, and a wrong request drains no node.
func TestSlurmProlog(t *testing.T) {
	if testing.Short() {
		t.Skip("starts several nodes")
	}
	s := newSlurmSite(t, 1)
	s.root("scontrol reconfigure")
	readAll := "set -e; cd $MILKWEED_DATASET; find . -type f | sort | xargs sha256sum | sha256sum; cd"
	want := strings.TrimSpace(s.root("cd /lustre/imagenet; find . -type f | sort | xargs sha256sum | sha256sum")) + "\n"

	t.Run("one after the other", func(t *testing.T) {
		for epoch := range 2 {
			id := s.submit("alice", readAll+hold, imagenet)
			s.ready("alice", id)
			if got := s.output("alice", id); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
			if epoch == 0 {
				s.settled(1)
			}
			if got, limit := s.status(1).Source.Bytes, s.dataset*int64(1-epoch); got != limit {
				t.Errorf("epoch %d: %d bytes read from the source, want %d", epoch, got, limit)
			}
			s.release("alice", id)
			s.clean(1)
		}
	})
	t.Run("at the same time", func(t *testing.T) {
		alice := s.submit("alice", hold+readAll, imagenet)
		s.ready("alice", alice)
		got := s.job("bob", `echo $MILKWEED_DATASET $MILKWEED_DATASET_IMAGENET; cat $MILKWEED_DATASET/private/secret.jpg 2>&1 | sed 's/.*: //'`, imagenet)
		if want := "/mnt/imagenet /mnt/imagenet\nPermission denied\n"; got != want {
			t.Errorf("bob: got %q, want %q", got, want)
		}
		s.release("alice", alice)
		if got := s.output("alice", alice); got != want {
			t.Errorf("alice: got %q, want %q", got, want)
		}
		s.clean(1)
	})
	t.Run("cancelled", func(t *testing.T) {
		id := s.submit("alice", "trap '' TERM\ncd $MILKWEED_DATASET; exec 3<1.jpg; cd"+hold, imagenet)
		s.ready("alice", id)
		s.root("scancel " + id)
		s.ended("alice", id, "CANCELLED")
		s.clean(1)
	})
	t.Run("several", func(t *testing.T) {
		s.root(`mkdir /lustre/coco-2017; echo hello >/lustre/coco-2017/f
			sed 's/imagenet/coco-2017/; s:/dev/shm/milkweed:/dev/shm/coco:' /etc/milkweed/imagenet.toml | sed 's:/mnt/imagenet:/mnt/coco:' >/etc/milkweed/coco-2017.toml
			sed '/allow_other/d' /etc/milkweed/imagenet.toml >/etc/milkweed/private.toml; echo nonsense >/etc/milkweed/broken.toml`)
		got := s.job("bob", "cat $MILKWEED_DATASET_COCO_2017/f; echo $MILKWEED_DATASET", "--comment=project x milkweed=imagenet,coco-2017 milkweed=private milkweed=broken")
		for _, want := range []string{"hello\n/mnt/imagenet\n", "milkweed: node1: private: the configuration lacks allow_other\n", "milkweed: node1: broken: milkweed: /etc/milkweed/broken.toml:"} {
			if !strings.Contains(got, want) {
				t.Errorf("got %q, want %q in it", got, want)
			}
		}
		s.clean(1)
	})
	t.Run("wrong requests", func(t *testing.T) {
		s.root("cp /etc/milkweed/imagenet.toml /etc/other.toml; ln -sf imagenet.toml '/etc/milkweed/a b.toml'")
		for _, request := range []string{
			"nosuch", "../other", "/etc/milkweed/imagenet", "imagenet.toml", "$(touch${IFS}/lustre/pwned)", "`touch\t/lustre/pwned`",
			"a;touch\n/lustre/pwned", "*", "-c", "", ",,", "a\nexport LD_PRELOAD=x", "imagenet\x01", strings.Repeat("a", 5000), "1,2,3,4,5,6,7,8,9",
		} {
			got := s.job("bob", "echo \"[${MILKWEED_DATASET-}${LD_PRELOAD-}]\"", "--comment=milkweed="+request)
			if !strings.HasSuffix(got, "[]\n") || request != "" && request != ",," && !strings.Contains(got, "milkweed: node1: ") {
				t.Errorf("%q: got %q", request, got)
			}
		}
		s.clean(1)
		if got := s.job("bob", "echo \"[${MILKWEED_DATASET-}]\"", "--comment=xmilkweed=imagenet"); got != "[]\n" {
			t.Errorf("a comment that is no request: got %q", got)
		}
		s.root("test ! -e /lustre/pwned")
	})
	t.Run("crashes", func(t *testing.T) {
		id := s.submit("alice", hold+readAll, imagenet)
		s.ready("alice", id)
		s.on(1, `pid=$(milkweed status --json /mnt/imagenet | sed 's/.*"pid":\([0-9]*\).*/\1/'); kill -9 $pid
			set -o pipefail
			for i in $(seq 300); do now=$(milkweed status --json /mnt/imagenet 2>/dev/null | sed 's/.*"pid":\([0-9]*\).*/\1/') && [ "$now" != $pid ] && exit; sleep 0.1; done; exit 1`)
		s.release("alice", id)
		if got := s.output("alice", id); got != want {
			t.Errorf("after a crash: got %q, want %q", got, want)
		}
		s.clean(1)

		id = s.submit("alice", hold, imagenet)
		s.ready("alice", id)
		s.on(1, "pkill -9 -f 'milkweed moun[t]'; while pgrep -f 'milkweed moun[t]'; do sleep 0.1; done")
		if got := s.job("alice", readAll, imagenet); got != want {
			t.Errorf("after a crash, another job: got %q, want %q", got, want)
		}
		s.on(1, "pkill -9 -f 'milkweed moun[t]'; while pgrep -f 'milkweed moun[t]'; do sleep 0.1; done")
		s.release("alice", id)
		s.clean(1)
	})
	t.Run("epilog", func(t *testing.T) {
		s.on(1, `for job in 1 1 999; do env -i SLURM_JOB_ID=$job /etc/slurm/epilog.d/50-milkweed; done`)
		id := s.submit("alice", hold, imagenet)
		s.ready("alice", id)
		busy := s.OnNode(1, "sh", "-c", "cd /mnt/imagenet && echo && exec sleep 1003")
		out, err := busy.StdoutPipe()
		if err == nil {
			err = busy.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		out.Read(make([]byte, 1))
		s.release("alice", id)
		s.clean(1)
		s.on(1, "pkill -f 'sleep 1003'")
		busy.Wait()
	})
	t.Run("of the site", func(t *testing.T) {
		s.on(1, "mkdir /mnt/imagenet; milkweed mount -c /etc/milkweed/imagenet.toml")
		if got := s.job("alice", readAll, imagenet); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		s.on(1, "milkweed umount /mnt/imagenet; rmdir /mnt/imagenet") // the epilog did not
		s.clean(1)
	})
	t.Run("systemd", func(t *testing.T) {
		// The stub of systemd-run runs the service with the environment that systemd gives it.
		s.on(1, `mkdir -p /run/systemd/system
			rm -f /usr/bin/systemd-run
			cat >/usr/bin/systemd-run <<'END'
#!/bin/bash
env=(PATH=/usr/bin LANG=C)
while [[ $1 == --* ]]; do
	case $1 in
	--quiet | --collect | --unit=milkweed-slurm-* | --service-type=forking | --property=LimitNOFILE=* | --property=TimeoutStartSec=*) ;;
	--property=EnvironmentFile=-/etc/milkweed/imagenet.env) env+=($(cat /etc/milkweed/imagenet.env)) ;;
	--setenv=*) env+=("${1#--setenv=}") ;;
	*) echo "unrecognized option '$1'"; exit 1 ;;
	esac
	shift
done
exec env -i "${env[@]}" setsid --wait "$@" </dev/null >/dev/null 2>&1
END
			chmod 755 /usr/bin/systemd-run`)
		for _, how := range []string{"by systemd-run", "directly"} {
			s.root(`echo SECRET=of-the-daemon >/etc/milkweed/imagenet.env`)
			id := s.submit("alice", readAll+hold, imagenet)
			s.ready("alice", id)
			if got := s.output("alice", id); got != want {
				t.Errorf("%s: got %q, want %q", how, got, want)
			}
			env := s.on(1, `tr '\0' '\n' </proc/$(pgrep -o -f 'milkweed moun[t]')/environ | sort`)
			if !strings.Contains(env, "SECRET=of-the-daemon\n") || !strings.Contains(env, "SLURM_JOB_NODELIST=node1\n") || strings.Contains(env, "SLURM_JOB_ID=") {
				t.Errorf("%s: the environment of the daemon:\n%s", how, env)
			}
			s.release("alice", id)
			s.clean(1)
			s.on(1, "rm -rf /run/systemd")
		}
	})
	t.Run("kept", func(t *testing.T) {
		s.root("sed -i 's/^keep=no /keep=yes /' /etc/slurm/epilog.d/50-milkweed")
		s.job("alice", readAll, imagenet)
		pid := s.on(1, "pgrep -o -f 'milkweed moun[t]'")
		s.root("sed -i 's/^keep=yes /keep=no /' /etc/slurm/epilog.d/50-milkweed")
		id := s.submit("alice", readAll+hold, imagenet)
		s.ready("alice", id)
		if got := s.on(1, "pgrep -o -f 'milkweed moun[t]'"); got != pid {
			t.Errorf("the mount was not kept: process %s, before %s", got, pid)
		}
		s.release("alice", id)
		s.clean(1)
	})
	t.Run("broken node", func(t *testing.T) {
		s.on(1, "umount /usr/bin/milkweed")
		if got := s.job("bob", "echo done"); got != "done\n" {
			t.Errorf("a job without a dataset: %q", got)
		}
		id := s.submit("bob", "", imagenet)
		s.wait("scontrol show job " + id + " | grep 'JobState=PENDING Reason=(launch failed requeued held)'")
		if got := s.root("sinfo"); !strings.Contains(got, "node1 drained Prolog error") {
			t.Errorf("the node is not drained:\n%s", got)
		}
		if got := s.Log(); !strings.Contains(got, "milkweed is not installed") {
			t.Error("the log does not say why")
		}
	})
}

// The nodes of a job share their tiers if the configuration says so, and later jobs on other nodes
// use the copies.
func TestSlurmPeers(t *testing.T) {
	if testing.Short() {
		t.Skip("starts several nodes")
	}
	s := newSlurmSite(t, 3)
	s.root(`scontrol reconfigure; rm -r /lustre/imagenet/private
		(umask 077; milkweed peers keygen >/etc/milkweed/peers.key)
		printf '[peers]\nroster = "slurm"\nsecret_file = "/etc/milkweed/peers.key"\n' >>/etc/milkweed/imagenet.toml`)
	s.dataset -= 1000
	read := "srun sh -c 'cat $MILKWEED_DATASET/*.jpg | wc -c'"
	want := fmt.Sprintf("%d\n", s.dataset)

	id := s.submit("alice", read+hold, imagenet, "--nodes=2")
	s.ready("alice", id)
	if got := s.output("alice", id); got != want+want {
		t.Errorf("got %q, want %q", got, want+want)
	}
	if got := s.on(1, "milkweed peers /mnt/imagenet"); !strings.Contains(got, "2 nodes; this one is node1; 2 of them up") && !strings.Contains(got, "2 nodes, this one is node1; 2 of them up") {
		t.Errorf("peers:\n%s", got)
	}
	if got := s.status(1).Source.Bytes + s.status(2).Source.Bytes; got != s.dataset {
		t.Errorf("the nodes have read %d bytes of the source, want %d", got, s.dataset)
	}

	// While the job runs, one on all nodes uses the mounts that it finds.
	got := s.job("bob", read, imagenet, "--nodes=3")
	if strings.Count(got, want) != 3 || !strings.Contains(got, "milkweed: node1: imagenet was mounted for another job, with other peers\n") {
		t.Errorf("beside another job: got %q", got)
	}
	s.release("alice", id)
	for node := range 3 {
		s.clean(node + 1)
	}

	// A mount that was kept gets the peers of the next job. The prolog gets the nodes as in Slurm 22.05.
	s.root(`printf '#!/bin/bash\nSLURM_NODELIST=$SLURM_JOB_NODELIST exec /usr/bin/env -u SLURM_JOB_NODELIST /etc/slurm/prolog\n' >/etc/slurm/old
		mv /etc/slurm/prolog.d/50-milkweed /etc/slurm/prolog; install -m 755 /etc/slurm/old /etc/slurm/prolog.d/50-milkweed`)
	s.root("sed -i 's/^keep=no /keep=yes /' /etc/slurm/epilog.d/50-milkweed")
	s.job("alice", read, imagenet, "--nodes=2")
	s.root("sed -i 's/^keep=yes /keep=no /' /etc/slurm/epilog.d/50-milkweed")
	id = s.submit("alice", read+hold, imagenet, "--nodes=3")
	s.ready("alice", id)
	if got := s.output("alice", id); got != want+want+want {
		t.Errorf("got %q, want %q", got, want+want+want)
	}
	if got := s.on(2, "milkweed peers /mnt/imagenet"); !strings.Contains(got, "3 nodes") {
		t.Errorf("peers:\n%s", got)
	}
	s.release("alice", id)
	for node := range 3 {
		s.clean(node + 1)
	}
}

// The job scripts of the examples mount and train as their user, with peers and without, with the
// torchrun of Debian, and leave nothing on their nodes. The secret of the peers is one that nobody
// else may read.
func TestSlurmExamples(t *testing.T) {
	if testing.Short() {
		t.Skip("starts several nodes")
	}
	drivertest.Need(t, "fusermount3", "/usr/bin/torchrun", "python3-torch")
	s := newSlurmSite(t, 2)
	s.root(`sed -i 's/^KillWait=.*/KillWait=30/' /etc/slurm/slurm.conf; scontrol reconfigure
		rm -r /lustre/imagenet/private
		cp /usr/share/doc/milkweed/examples/slurm/{node.sh,*.sbatch} /usr/share/doc/milkweed/examples/tiering/hpc-node.toml /home/alice
		sed -i '/^.source/a clock_skew = "0s"' /home/alice/hpc-node.toml
		cat >/home/alice/train.py <<'END'
import glob, os, sys, time
job = os.environ["SLURM_JOB_ID"]
def wait(*names):
    while not all(map(os.path.exists, names)):
        time.sleep(0.02)
open("mounted-" + job + "-" + os.environ["SLURM_PROCID"], "w")
assert os.environ["WORLD_SIZE"] == "2"  # of torchrun
wait("mounted-" + job + "-0", "mounted-" + job + "-1")
print(sum(len(open(f, "rb").read()) for f in glob.glob(sys.argv[1] + "/*.jpg")), "bytes", flush=True)
for key in glob.glob("/tmp/milkweed-*.key"):
    print("%o" % (os.stat(key).st_mode & 0o777), "key", flush=True)
open("ready-" + job + "-" + os.environ["SLURM_PROCID"], "w")
wait("go-" + job)
END`)
	s.dataset -= 1000
	for _, c := range []struct {
		script string
		cancel string // "": the job ends by itself
		source int64  // bytes that the two nodes read from it together
		key    int    // lines about the key
	}{
		{"train.sbatch", "", 2 * s.dataset, 0},
		{"train.sbatch", "scancel --signal=TERM", 2 * s.dataset, 0},
		{"milkweed-peers.sbatch", "", s.dataset, 2},
		{"milkweed-peers.sbatch", "scancel", s.dataset, 2},
	} {
		cmd := s.As("alice", "bash", "-c", "sbatch --parsable --nodes=2 "+c.script)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", c.script, err, out)
		}
		id := strings.TrimSpace(string(out))
		s.wait("cd /home/alice && test -e ready-" + id + "-0 -a -e ready-" + id + "-1")
		got := s.output("alice", id)
		if strings.Count(got, fmt.Sprint(s.dataset, " bytes\n")) != 2 || strings.Count(got, "600 key\n") != c.key {
			t.Errorf("%s: got\n%s", c.script, got)
		}
		var source int64
		for node := range 2 {
			var status control.Status
			if err := json.Unmarshal([]byte(s.on(node+1, "milkweed status --json /tmp/alice-"+id+"/imagenet")), &status); err != nil {
				t.Fatal(err)
			}
			source += status.Source.Bytes
		}
		if source != c.source {
			t.Errorf("%s: %d bytes read from the source, want %d", c.script, source, c.source)
		}
		if c.cancel != "" {
			s.run(s.As("alice", "bash"), c.cancel+" "+id)
			s.wait("scontrol show job " + id + " | grep -E 'JobState=(CANCELLED|FAILED)'")
		} else {
			s.release("alice", id)
		}
		for node := range 2 {
			s.clean(node + 1)
			if left := s.on(node+1, "find /dev/shm /tmp -mindepth 1 ! -path '/tmp/milkweed-2001*' -user alice"); left != "" {
				t.Errorf("%s: left on node%d:\n%s", c.script, node+1, left)
			}
		}
	}
}
