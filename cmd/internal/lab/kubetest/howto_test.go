package kubetest

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The kubectl of this package finds mistakes of a page.
func TestHowToFindsMistakes(t *testing.T) {
	if testing.Short() {
		t.Skip("reads the schemas of Kubernetes")
	}
	schemas(t) // skips
	mistakes := map[string]struct{ commands, says string }{
		"no namespace":    {"kubectl delete namespace milkweed; kubectl apply -k csi", "refers to namespace/milkweed"},
		"no secret":       {"kubectl apply -k train/csi", "refers to secret/training in namespace milkweed"},
		"no driver":       {"kubectl delete -k csi; kubectl create secret generic imagenet --from-literal=a=b; kubectl apply -f volumes/inline.yaml", "refers to csidriver/"},
		"no key":          {"kubectl create secret generic imagenet --from-literal=a=", "key a is empty"},
		"wrong folder":    {"kubectl apply -k trian", "kustomize build"},
		"wrong name":      {"kubectl rollout status ds/milkweed-cis -n milkweed", "not found"},
		"wrong namespace": {"kubectl rollout status ds/milkweed-csi", "not found"},
		"wrong verb":      {"kubectl rollout stauts ds/milkweed-csi", "stauts"},
		"wrong flag":      {"kubectl drain node1 --ignore-daemonset", "unknown flag"},
		"wrong kind":      {"kubectl get csidrvier csi.milkweedfs.github.io", "resource type"},
		"wrong label":     {"kubectl get pods -n milkweed -l app=milkweed", "no resources"},
		"wrong field":     {"sed -i s/attachRequired/attachRequried/ csi/driver.yaml; kubectl apply -k csi", "is invalid"},
		"wrong argument":  {"sed -i s/--node-name/--node/ csi/plugin.yaml; kubectl apply -k csi", "unknown flag"},
		"wrong tier":      {"sed -i s/8GiB/8GB0/ csi/mounter.yaml; kubectl apply -k csi", "8GB0"},
		"wrong option": {"sed -i s/peers_min/peers_mni/ peers/peers.yaml; kubectl create secret generic milkweed-peers -n milkweed --from-literal=key=x; " +
			"kubectl apply -k peers", "peers_mni"},
		"wrong program": {"kubectl exec -n milkweed ds/milkweed-mounter -- milkweed status", "/usr/bin"},
		"wrong command": {"kubectl exec -n milkweed ds/milkweed-mounter -- /usr/bin/milkweed stauts", "no such command"},
		"rollout":       {"kubectl rollout status ds/milkweed-mounter -n milkweed", "RollingUpdate"},
		"wait":          {"kubectl wait --for=condition=Available job/train-digits", "not found"},
		"twice":         {"kubectl delete -k csi; kubectl delete -k csi", "not found"},
	}
	var page strings.Builder
	page.WriteString("git clone https://github.com/milkweedfs/milkweed\ncd milkweed/examples/kubernetes\nkubectl apply -f namespace.yaml\nkubectl apply -k csi\n")
	for name, m := range mistakes {
		// Each has a copy of the cluster and of the folders.
		fmt.Fprintf(&page, "rm -rf ~/copy; mkdir ~/copy; cp -R \"$KUBETEST_STATE\" ~/copy/state; cp -R ~/milkweed/examples ~/copy/\n"+
			"cd ~/copy/examples/kubernetes; KUBETEST_STATE=~/copy/state bash -e -c %q </dev/null >~/out 2>&1 || echo \"refused %s: $(tr '\\n' ' ' <~/out)\"\n", m.commands, name)
	}
	cmd := HowTo(t, Programs(t), root(t))
	cmd.Stdin = strings.NewReader(page.String())
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for name, m := range mistakes {
		said := regexp.MustCompile("(?m)^refused " + name + ": (.*)$").FindStringSubmatch(string(out))
		if said == nil || !strings.Contains(said[1], m.says) {
			t.Errorf("%s: %q, want an error with %q", name, said, m.says)
		}
	}
	if t.Failed() {
		t.Logf("%s", out)
	}
}

// Each command line in the manifests is accepted by the programs, and wrong ones are refused.
func TestCommandsOfManifests(t *testing.T) {
	if testing.Short() {
		t.Skip("reads the schemas of Kubernetes")
	}
	schemas(t) // skips
	programs := Programs(t)
	counts := make(map[string]int)
	for folder := range folders {
		objects, err := Parse([]byte(example(t, folder)))
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects {
			for _, line := range o.Commands() {
				counts[strings.Join(line[:2], " ")]++
				if err := CheckCommand(programs, line); err != nil {
					t.Errorf("%v: %v", o.ID(), err)
				}
			}
		}
	}
	for _, want := range []string{
		"/usr/bin/milkweed mount", "/usr/bin/milkweed status", "/usr/bin/milkweed-k8s csi", "/usr/bin/milkweed-k8s fluid", "/usr/bin/milkweed-k8s mounter",
	} {
		if counts[want] == 0 {
			t.Errorf("no manifest runs %s", want)
		}
	}
	for _, line := range []string{
		"milkweed status", "/usr/bin/sh -c", "/usr/bin/milkweed stauts", "/usr/bin/milkweed status --jsno", "/usr/bin/milkweed-k8s mounter --tier ram:x",
		"/usr/bin/milkweed-k8s mounter --tiers ram:/x:1GiB", "/usr/bin/milkweed-k8s fluid -- --tier ram", "/usr/bin/milkweed-k8s fluid --unmount",
		"/usr/bin/milkweed mount -o wrokers=1 / /mnt",
	} {
		if err := CheckCommand(programs, strings.Fields(line)); err == nil {
			t.Errorf("%s was accepted", line)
		}
	}
}

// The mounter and all that is not the plugin or a mount for the node has no privileges.
func TestLeastPrivilege(t *testing.T) {
	schemas(t) // skips
	privileged := map[string]bool{"milkweed-csi/plugin": true, "milkweed-imagenet/milkweed": true}
	containers := 0
	for folder := range folders {
		manifests := example(t, folder)
		objects, err := Parse([]byte(manifests))
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects {
			for _, c := range o.podSpec().list("containers") {
				name := o.Name() + "/" + c.text("name")
				containers++
				is, _ := c.Get("securityContext", "privileged").(bool)
				if is != privileged[name] {
					t.Errorf("%s: privileged is %v", name, is)
				}
				if o.Kind() != "Pod" && !is && (!slices.Equal(c.words("securityContext", "capabilities", "drop"), []string{"ALL"}) || c.Get("securityContext", "allowPrivilegeEscalation") != false) {
					t.Errorf("%s has capabilities, or may get some", name)
				}
				if o.Name() == "milkweed-mounter" && (o.podSpec().Get("securityContext", "runAsNonRoot") != true || c.Get("securityContext", "readOnlyRootFilesystem") != true ||
					o.podSpec().Get("securityContext", "seccompProfile", "type") != "RuntimeDefault" || o.podSpec().Get("automountServiceAccountToken") != false) {
					t.Errorf("%s is not restricted", name)
				}
			}
		}
	}
	if containers < 7 {
		t.Errorf("%d containers", containers)
	}
}
