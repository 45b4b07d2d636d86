package main

import (
	"os"
	"os/exec"
	"testing"

	"google.golang.org/grpc/codes"
)

// A pod reads all bytes of an inline volume and of a persistent one. Afterwards nothing is left.
func TestPublish(t *testing.T) {
	n := newNode(t)
	n.startPlugin()
	n.startMounter()
	n.check(n.publish(n.inline("pod1", map[string]string{sourceKey: n.source, optionsKey: "attr_timeout=10s,noexec"})))
	n.read("pod1")
	n.check(n.publish(n.persistent("pod2", map[string]string{sourceKey: n.source, configurationKey: "[mount]\nmode = \"cached\"\n[[tier]]\nname = \"other\"\npath = \"" + n.dir + "/home/tier\"\nquota = \"64MiB\"\n"})))
	n.read("pod2")
	if !exists(n.dir + "/home/tier") {
		t.Error("the tier of the configuration is not used")
	}
	if out, err := exec.Command("touch", n.target("pod2")+"/new").CombinedOutput(); err == nil {
		t.Errorf("the volume is writable: %s", out)
	}
	if got := len(n.daemons()); got != 2 {
		t.Errorf("%d daemons, want 2", got)
	}
	for _, pod := range []string{"pod1", "pod2"} {
		n.check(n.unpublish(pod))
		if exists(n.target(pod)) {
			t.Errorf("%s is left", n.target(pod))
		}
	}
	if left := n.daemons(); len(left) > 0 {
		t.Errorf("still running after the volumes were unpublished: %d", left)
	}
}

// Without the mounter, a volume is unavailable, and can be unpublished.
func TestNoMounter(t *testing.T) {
	n := newNode(t)
	n.startPlugin()
	err := n.publish(n.inline("pod1", map[string]string{sourceKey: n.source}))
	wantCode(t, err, codes.Unavailable, "Start the pod of milkweed-k8s mounter")
	if _, err := os.Lstat(n.target("pod1")); err == nil {
		t.Error("the target is left")
	}
	n.check(n.unpublish("pod1"))
}
