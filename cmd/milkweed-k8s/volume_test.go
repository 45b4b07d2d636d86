package main

import (
	"slices"
	"strings"
	"testing"
)

// The key of a volume depends on all that the daemon gets, and on nothing else.
func TestKey(t *testing.T) {
	parse := func(attributes, secrets map[string]string) string {
		t.Helper()
		v, err := parseVolume(attributes, secrets, nil)
		if err != nil {
			t.Fatal(err)
		}
		return v.key()
	}
	base := parse(map[string]string{"source": "/a", "options": "workers=2,mode=cached"}, nil)
	same := parse(map[string]string{"source": "/a", "options": " mode=cached,,workers=2", kubeletPrefix + "pod.name": "x"}, nil)
	if base != same {
		t.Error("the order of options, or the name of the pod, matters")
	}
	for _, other := range []string{
		parse(map[string]string{"source": "/b", "options": "workers=2,mode=cached"}, nil),
		parse(map[string]string{"source": "/a", "options": "workers=3,mode=cached"}, nil),
		parse(map[string]string{"source": "/a", "options": "workers=2,mode=cached", "configuration": "x"}, nil),
		parse(map[string]string{"source": "/a", "options": "workers=2,mode=cached"}, map[string]string{"AWS_REGION": "x"}),
	} {
		if other == base {
			t.Error("different volumes have the same key")
		}
	}
}

func TestSecrets(t *testing.T) {
	for _, c := range []struct{ key, value, says string }{
		{"AWS_ACCESS_KEY_ID", "x", ""},
		{"EXTRA", "x", ""},
		{"PATH", "x", "not allowed"},
		{"AWS_REGION", "a\x00b", "not a text"},
		{googleCredentials, `{"type":"service_account"}`, ""},
		{googleCredentials, `{"type":"external_account","credential_source":{"executable":{"command":"/x"}}}`, "neither of a service account"},
		{googleCredentials, "/etc/passwd", "not JSON"},
	} {
		_, err := parseVolume(map[string]string{"source": "/a"}, map[string]string{c.key: c.value}, []string{"EXTRA"})
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s=%s: got %v, want %q", c.key, c.value, err, c.says)
		}
		if err != nil && strings.Contains(err.Error(), c.value) {
			t.Errorf("the error has the value: %v", err)
		}
	}
}

// Whatever the attributes are, the arguments of milkweed have them in their places only.
func FuzzVolume(f *testing.F) {
	f.Add("/a", "mode=cached,workers=2", "")
	f.Add("s3://bucket?region=x", "", "[mount]\nmode = \"cached\"")
	f.Add("--help", "config=/x", "[[tier]]")
	f.Add("/a\n/b", "mode=a\x00b", "\x00")
	f.Fuzz(func(t *testing.T, source, options, configuration string) {
		v, err := parseVolume(map[string]string{"source": source, "options": options, "configuration": configuration}, nil, nil)
		if err != nil {
			return
		}
		if v.Source != source || !printable(source) {
			t.Errorf("source %q became %q", source, v.Source)
		}
		m := &mounter{tiers: []string{"t:/t:1GiB"}}
		words, err := m.words(request{Volume: v, Target: "/target"})
		if err != nil {
			return
		}
		i := slices.Index(words, "--")
		if i != len(words)-3 || words[i+1] != source || words[i+2] != "/target" {
			t.Errorf("arguments %q", words)
		}
		given := words[slices.Index(words, "--options")+1]
		for o := range strings.SplitSeq(given, ",") {
			if name, _, _ := strings.Cut(o, "="); !slices.Contains(append(allowedOptions, "allow_other", "default_permissions"), name) {
				t.Errorf("options %q became %q", options, given)
			}
		}
	})
}
