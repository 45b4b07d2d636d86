package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/mounts"
)

// fluidJSON is what Fluid 1.0.8 writes for the Dataset of examples/kubernetes/fluid, with the
// options and encryptOptions that it may have.
const fluidJSON = `{"mounts":[{"mountPoint":"s3://imagenet/2012?region=eu-west-1","options":{` +
	`"AWS_ACCESS_KEY_ID":"/etc/fluid/secrets/imagenet/id","AWS_SECRET_ACCESS_KEY":"/etc/fluid/secrets/imagenet/key",` +
	`"profile":"imagenet-folder","workers":"16"},"name":"imagenet","path":"/"}],` +
	`"targetPath":"/runtime-mnt/thin/default/imagenet/thin-fuse","runtimeOptions":{"workers":"8","noexec":""},"accessModes":["ReadOnlyMany"]}`

func TestFluidArguments(t *testing.T) {
	m, err := parseFluid(strings.NewReader(fluidJSON))
	if err != nil {
		t.Fatal(err)
	}
	got := m.arguments([]string{"--tier", "ram:/dev/shm/milkweed:1GiB"})
	want := []string{
		"milkweed", "mount", "--foreground", "--clear-stale", "--allow-other", "-o", "noexec,profile=imagenet-folder,workers=16",
		"--tier", "ram:/dev/shm/milkweed:1GiB", "--", "s3://imagenet/2012?region=eu-west-1", "/runtime-mnt/thin/default/imagenet/thin-fuse",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
	if got, want := m.credentials["AWS_ACCESS_KEY_ID"], "/etc/fluid/secrets/imagenet/id"; got != want {
		t.Errorf("AWS_ACCESS_KEY_ID is %q, want %q", got, want)
	}
}

// Milkweed accepts each option that a Dataset may have.
func TestFluidOptionsAreThoseOfMilkweed(t *testing.T) {
	values := map[string]string{
		"attr_timeout": "1h", "clock_skew": "5s", "consistency": "1m", "generation": "v1", "log_level": "warn", "mode": "cached", "noexec": "",
		"profile": "hpc", "scrub_interval": "24h", "scrub_rate": "10MB", "source_bandwidth": "100MB", "source_operations": "100", "window": "1GiB",
		"workers": "16", "xattrs": "true",
	}
	dir := t.TempDir()
	if err := errors.Join(os.MkdirAll(dir+"/source/v1", 0o755), os.Mkdir(dir+"/mnt", 0o755)); err != nil {
		t.Fatal(err)
	}
	m := &fluidMount{source: dir + "/source", target: dir + "/mnt", options: make(map[string]string)}
	for _, name := range fluidOptions {
		value, ok := values[name]
		if !ok {
			t.Errorf("the test has no value of %s", name)
		}
		if err := m.add(name, value); err != nil {
			t.Error(err)
		}
	}
	args := m.arguments([]string{"--fake", "--tier", "ram:" + dir + "/tier:1GiB"})
	if out, err := exec.Command(programs+"/milkweed", args[1:]...).CombinedOutput(); err != nil {
		t.Errorf("%q: %v\n%s", args, err, out)
	}
}

// A configuration that cannot be served is refused, with the reason.
func TestFluidRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(config, mount map[string]any)
		says   string
	}{
		"no mount":         {func(c, _ map[string]any) { c["mounts"] = []any{} }, "0 mounts"},
		"two mounts":       {func(c, m map[string]any) { c["mounts"] = []any{m, m} }, "2 mounts"},
		"a path":           {func(_, m map[string]any) { m["path"] = "/imagenet" }, "remove path"},
		"writable":         {func(c, _ map[string]any) { c["accessModes"] = []any{"ReadWriteMany"} }, "ReadOnlyMany"},
		"no target":        {func(c, _ map[string]any) { delete(c, "targetPath") }, "targetPath"},
		"relative target":  {func(c, _ map[string]any) { c["targetPath"] = "mnt" }, "targetPath"},
		"target upwards":   {func(c, _ map[string]any) { c["targetPath"] = "/mnt/../etc" }, "targetPath"},
		"the root":         {func(c, _ map[string]any) { c["targetPath"] = "/" }, "targetPath"},
		"NUL in target":    {func(c, _ map[string]any) { c["targetPath"] = "/a\x00b" }, "targetPath"},
		"no URL":           {func(_, m map[string]any) { m["mountPoint"] = "/etc" }, "not a URL"},
		"a claim":          {func(_, m map[string]any) { m["mountPoint"] = "pvc://imagenet" }, "s3, gs, azblob or local"},
		"a flag":           {func(_, m map[string]any) { m["mountPoint"] = "--tier=x://" }, "s3, gs, azblob or local"},
		"relative local":   {func(_, m map[string]any) { m["mountPoint"] = "local://data" }, "absolute"},
		"local upwards":    {func(_, m map[string]any) { m["mountPoint"] = "local:///data/../../etc" }, "clean"},
		"a newline":        {func(_, m map[string]any) { m["mountPoint"] = "s3://a\nb" }, "control"},
		"unknown option":   {func(_, m map[string]any) { m["options"] = map[string]any{"wrokers": "1"} }, `"wrokers"`},
		"a file":           {func(_, m map[string]any) { m["options"] = map[string]any{"config": "/data/x.toml"} }, `"config"`},
		"an address":       {func(c, _ map[string]any) { c["runtimeOptions"] = map[string]any{"metrics": ":80"} }, `"metrics"`},
		"a loaded library": {func(_, m map[string]any) { m["options"] = map[string]any{"LD_PRELOAD": "/x"} }, `"LD_PRELOAD"`},
		"a second option":  {func(_, m map[string]any) { m["options"] = map[string]any{"workers": "1,log_file=/etc/x"} }, "comma"},
		"a control":        {func(_, m map[string]any) { m["options"] = map[string]any{"workers": "1\n"} }, "control"},
		"a number":         {func(_, m map[string]any) { m["options"] = map[string]any{"workers": 16} }, "cannot unmarshal"},
	} {
		t.Run(name, func(t *testing.T) {
			var config map[string]any
			if err := json.Unmarshal([]byte(fluidJSON), &config); err != nil {
				t.Fatal(err)
			}
			c.change(config, config["mounts"].([]any)[0].(map[string]any))
			text, err := json.Marshal(config)
			if err != nil {
				t.Fatal(err)
			}
			_, err = parseFluid(bytes.NewReader(text))
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want an error with %q", err, c.says)
			}
		})
	}
	for name, text := range map[string]string{
		"nothing": "", "text": "mounts", "cut off": fluidJSON[:100], "two values": fluidJSON + fluidJSON, "null": "null", "a list": "[]",
		"too long": strings.Repeat(" ", maxFluidConfig+1),
	} {
		if _, err := parseFluid(strings.NewReader(text)); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

// Credentials are read from files of secrets only, which Kubernetes makes of symbolic links.
func TestFluidCredentials(t *testing.T) {
	dir := t.TempDir()
	secrets := dir + "/secrets"
	if err := errors.Join(
		os.MkdirAll(secrets+"/s/..1", 0o755),
		os.WriteFile(secrets+"/s/..1/key", []byte("one\n"), 0o400),
		os.WriteFile(secrets+"/s/..1/lines", []byte("one\ntwo\n"), 0o400),
		os.WriteFile(secrets+"/s/..1/large", bytes.Repeat([]byte("x"), maxFluidSecret+1), 0o400),
		os.WriteFile(dir+"/shadow", []byte("root"), 0o400),
		os.WriteFile(secrets+"/s/google", []byte(`{"type":"service_account"}`), 0o400),
		os.WriteFile(secrets+"/s/command", []byte(`{"type":"external_account","credential_source":{"executable":{"command":"/bin/x"}}}`), 0o400),
		os.Symlink("..1", secrets+"/s/..data"),
		os.Symlink("..data/key", secrets+"/s/key"),
		os.Symlink("../../shadow", secrets+"/s/shadow"),
		syscall.Mkfifo(secrets+"/s/fifo", 0o600),
	); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, value, want string }{
		{"AWS_SECRET_ACCESS_KEY", secrets + "/s/key", "one"},
		{"AWS_SECRET_ACCESS_KEY", "literal", "literal"}, // Fluid with THIN_FUSE_CONFIG_STORAGE=secret
		{"GOOGLE_APPLICATION_CREDENTIALS", secrets + "/s/google", secrets + "/s/google"},
		{"GOOGLE_APPLICATION_CREDENTIALS", secrets + "/s/command", ""},
		{"GOOGLE_APPLICATION_CREDENTIALS", dir + "/shadow", ""},
		{"AWS_SECRET_ACCESS_KEY", secrets + "/s/../../shadow", ""},
		{"AWS_SECRET_ACCESS_KEY", secrets + "/s/shadow", ""},
		{"AWS_SECRET_ACCESS_KEY", secrets + "/s/missing", ""},
		{"AWS_SECRET_ACCESS_KEY", secrets + "/s/lines", ""},
		{"AWS_SECRET_ACCESS_KEY", secrets + "/s/..1/lines", ""},
		{"AWS_SECRET_ACCESS_KEY", secrets + "/s/..1/large", ""},
		{"AWS_SECRET_ACCESS_KEY", secrets + "/s", ""},
		{"AWS_SECRET_ACCESS_KEY", "a\x00b", ""},
	} {
		m := &fluidMount{credentials: map[string]string{c.name: c.value}}
		env, err := m.environment(secrets)
		if c.want == "" {
			if err == nil {
				t.Errorf("%s=%q was accepted: %q", c.name, c.value, env)
			}
		} else if want := []string{c.name + "=" + c.want}; err != nil || !slices.Equal(env, want) {
			t.Errorf("%s=%q: %q, %v; want %q", c.name, c.value, env, err, want)
		}
	}
	// A FIFO does not block the command: nobody writes to it, so it is empty.
	m := &fluidMount{credentials: map[string]string{"AWS_SECRET_ACCESS_KEY": secrets + "/s/fifo"}}
	if env, err := m.environment(secrets); err != nil || !slices.Equal(env, []string{"AWS_SECRET_ACCESS_KEY="}) {
		t.Errorf("a FIFO: %q, %v", env, err)
	}
}

// With the file of Fluid, the command mounts a dataset that other programs read, and SIGTERM unmounts.
func TestFluidMounts(t *testing.T) {
	dir := t.TempDir()
	target := dir + "/runtime-mnt/thin/default/digits/thin-fuse"
	config := dir + "/config.json"
	text, err := json.Marshal(map[string]any{
		"mounts":      []any{map[string]any{"mountPoint": "local://" + dir + "/source", "name": "digits", "options": map[string]string{"mode": "cached"}}},
		"targetPath":  target,
		"accessModes": []string{"ReadOnlyMany"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(dir+"/source", 0o755), os.WriteFile(dir+"/source/f", []byte("content"), 0o644), os.WriteFile(config, text, 0o644)); err != nil {
		t.Fatal(err)
	}
	daemon := exec.Command(programs+"/milkweed-k8s", "fluid", "--config", config, "--milkweed", programs+"/milkweed", "--", "--tier", "ram:"+dir+"/tier:64MiB")
	daemon.Env = append(os.Environ(), "MILKWEED_RUNTIME_DIR="+dir+"/run")
	var log bytes.Buffer
	daemon.Stderr = &log
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Unmount(target, syscall.MNT_DETACH) })
	ended := make(chan error, 1)
	go func() { ended <- daemon.Wait() }()
	for !fluidIsMounted(t, target) {
		select {
		case err := <-ended:
			t.Fatalf("%v\n%s", err, log.String())
		case <-time.After(10 * time.Millisecond):
		}
	}
	if out, err := exec.Command("cat", target+"/f").CombinedOutput(); err != nil || string(out) != "content" {
		t.Errorf("read %q, %v", out, err)
	}
	if err := daemon.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("%v\n%s", err, log.String())
	}
	if fluidIsMounted(t, target) {
		t.Error("it is still mounted")
	}
	if used, _ := filepath.Glob(dir + "/tier/*/milkweed.json"); len(used) != 1 {
		t.Errorf("the tier of the flags has %q\n%s", used, log.String())
	}
}

// fluidIsMounted reports whether a Milkweed is mounted on path, as Fluid finds it out: by the type
// that the ThinRuntimeProfile states.
func fluidIsMounted(t *testing.T, path string) bool {
	t.Helper()
	table, err := mounts.Read(mounts.Self)
	if err != nil {
		t.Fatal(err)
	}
	m, ok := table.At(path)
	return ok && m.Type == "fuse.milkweed"
}

func TestFluidUsage(t *testing.T) {
	for _, c := range []struct{ line, says string }{
		{"fluid --config /missing", "--config names another"},
		{"fluid x", "follow --"},
		{"fluid x -- --tier y", "follow --"},
		{"fluid --tier x", "unknown flag"},
	} {
		err := run(t.Context(), append([]string{"milkweed-k8s"}, strings.Fields(c.line)...), new(bytes.Buffer), new(bytes.Buffer))
		if exit.Of(err) != exit.Usage || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want a usage error with %q", c.line, err, c.says)
		}
	}
}

// Whatever the file contains, the arguments of milkweed that stem from it are options of the list,
// a source and a target.
func FuzzFluid(f *testing.F) {
	f.Add([]byte(fluidJSON))
	f.Add([]byte(`{"mounts":[{"mountPoint":"local:///a"}],"targetPath":"/b"}`))
	f.Add([]byte(`{"mounts":[{"mountPoint":"gs://-a,b","options":{"mode":"--"}}],"targetPath":"/-"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := parseFluid(bytes.NewReader(data))
		if err != nil {
			return
		}
		args := m.arguments(nil)
		if slices.Index(args, "--") != len(args)-3 {
			t.Fatalf("%q: not a source and a target at the end", args)
		}
		if strings.HasPrefix(m.source, "-") || !filepath.IsAbs(m.target) || filepath.Clean(m.target) != m.target || m.target == "/" {
			t.Errorf("%q: source or target", args)
		}
		if rest := args[5 : len(args)-3]; len(rest) > 0 {
			if len(rest) != 2 || rest[0] != "-o" {
				t.Fatalf("%q: more than options", args)
			}
			for word := range strings.SplitSeq(rest[1], ",") {
				if name, _, _ := strings.Cut(word, "="); !slices.Contains(fluidOptions, name) {
					t.Errorf("%q: option %q", args, name)
				}
			}
		}
		for _, arg := range args {
			if hasControl(arg) {
				t.Errorf("%q has a control character", arg)
			}
		}
		for name := range m.credentials {
			if !slices.Contains(fluidCredentials, name) {
				t.Errorf("credential %q", name)
			}
		}
	})
}
