package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/milkweedfs/milkweed/drivers/blob/blobtest"
)

// The secret of a volume has the credentials for its bucket. A volume with other ones does not share
// its daemon.
func TestBucket(t *testing.T) {
	n := newNode(t)
	server := blobtest.Start(t, blobtest.S3)
	server.MakeBucket(t, "datasets")
	for _, name := range []string{"a", "b"} {
		data, err := os.ReadFile(filepath.Join(n.source, name))
		n.check(err)
		server.Put(t, "datasets", "set/"+name, data)
	}
	secrets := make(map[string]string)
	for _, variable := range server.Env() {
		if key, value, _ := strings.Cut(variable, "="); slices.Contains(allowedSecrets, key) && value != "" {
			secrets[key] = value
		}
	}
	n.startPlugin()
	n.startMounter()
	url := server.BucketURL("datasets", "set", server.URL)
	r := n.inline("pod1", map[string]string{sourceKey: url})
	r.Secrets = secrets
	n.check(n.publish(r))
	n.read("pod1")

	wrong := n.inline("pod2", map[string]string{sourceKey: url})
	wrong.Secrets = maps.Clone(secrets)
	wrong.Secrets["AWS_SECRET_ACCESS_KEY"] = "wrong"
	wantCode(t, n.publish(wrong), codes.FailedPrecondition, "source")
	none := n.inline("pod3", map[string]string{sourceKey: url + "&anonymous=true"})
	err := n.publish(none)
	wantCode(t, err, codes.FailedPrecondition, "nodePublishSecretRef names one.")
	if strings.Contains(fmt.Sprint(err), "..") || strings.Contains(fmt.Sprint(err), ".;") {
		t.Errorf("the sentences of the message: %v", err)
	}
	if !testing.Short() { // it is tried for seconds
		gone := n.inline("pod4", map[string]string{sourceKey: server.BucketURL("datasets", "set", "http://127.0.0.1:1") + "&anonymous=true"})
		if err := n.publish(gone); err == nil || strings.Contains(err.Error(), "nodePublishSecretRef") {
			t.Errorf("a store that does not answer: %v", err)
		}
	}
	if got := n.mounts(); len(got) != 1 {
		t.Errorf("mounted: %q", got)
	}
	for _, file := range []string{"plugin.log", "mounter.log"} {
		if log, _ := os.ReadFile(filepath.Join(n.dir, file)); strings.Contains(string(log), secrets["AWS_SECRET_ACCESS_KEY"]) {
			t.Errorf("the secret is in %s", file)
		}
	}
	n.check(n.unpublish("pod1"))
}
