package redact

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// A log in each format keeps what explains a fault, and no name.
func TestLog(t *testing.T) {
	const secret = "sécret name"
	for _, format := range []string{"text", "json"} {
		var b bytes.Buffer
		var h slog.Handler = slog.NewTextHandler(&b, nil)
		if format == "json" {
			h = slog.NewJSONHandler(&b, nil)
		}
		log := slog.New(h)
		log.Warn("source not readable", "path", secret+"/a.jpg", "err", errors.New("open "+secret+"/a.jpg: input/output error"), "took", 3*time.Second, "bytes", 17)
		log.Warn("tier", "tier", "ssd", "err", errors.New("something about "+secret), "source", "s3://"+"bucket-"+secret)
		log.Error("panic", "value", secret, "stack", "goroutine 7 [running]:\nmain.main()")
		log.WithGroup("g").Info("grouped", "path", secret)
		b.WriteString("panic: " + secret + "\n\ngoroutine 1 [running]:\ngithub.com/milkweedfs/milkweed/fs.(*node).Open(0xc000, {0x1, 0x2}, ...)\n\t/src/fs/node.go:12 +0x1d\n" + secret + "\n{\"path\": \"" + secret + "\n")
		r := New()
		got := string(r.Log(b.Bytes(), []string{"tier"}))
		for _, want := range []string{"source not readable", "input/output error", "3s", "17", "ssd", "goroutine 7 [running]", "goroutine 1 [running]:", "fs.(*node).Open(", "\t/src/fs/node.go:12 +0x1d", r.Name("a.jpg")} {
			if want == "3s" && format == "json" {
				want = "3000000000"
			}
			if !strings.Contains(got, want) {
				t.Errorf("%s: no %q in\n%s", format, want, got)
			}
		}
		for _, name := range []string{secret, "cret", "a.jpg", "bucket"} {
			if strings.Contains(got, name) {
				t.Errorf("%s: %q is in\n%s", format, name, got)
			}
		}
	}
}

func TestPath(t *testing.T) {
	r := New()
	a, b := r.Name("a"), r.Name("b")
	for text, want := range map[string]string{
		"": "", ".": ".", "a": a, "/a/b": "/" + a + "/" + b, "a/b/": a + "/" + b + "/",
		"s3://a/b?region=eu": "s3://" + a + "/" + b, "a b": r.Name("a b"),
		"a://b": r.Name("a:") + "//" + b,
	} {
		if got := r.Path(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
	if a == b || a == New().Name("a") {
		t.Error("pseudonyms are equal that must differ")
	}
}

func TestJSON(t *testing.T) {
	r := New()
	got, err := r.JSON([]byte(`{"a": ["x", {"b": "y"}], "n": 12345678901234567890, "c": null}`), func(path, text string) string { return path + "=" + text })
	if want := "{\n  \"a\": [\n    \"a=x\",\n    {\n      \"b\": \"a.b=y\"\n    }\n  ],\n  \"c\": null,\n  \"n\": 12345678901234567890\n}\n"; err != nil || string(got) != want {
		t.Errorf("got %s, %v", got, err)
	}
	if _, err := r.JSON([]byte("{"), nil); err == nil {
		t.Error("no error for half a document")
	}
}

// No line of a log makes it fail, and no name of one attribute stays.
func FuzzLog(f *testing.F) {
	f.Add("secret", "path")
	f.Add("a b\"c\n=d", "err")
	f.Add("\xff{", "x")
	f.Add("://0", "path")
	f.Fuzz(func(t *testing.T, value, key string) {
		if len(value) < 4 || isNumber(value) || key == "" || strings.ContainsAny(key, " \"=\n\t") {
			return
		}
		value = "secret" + value
		var b bytes.Buffer
		slog.New(slog.NewTextHandler(&b, nil)).Info("m", "key-"+key, value)
		if got := string(New().Log(b.Bytes(), nil)); strings.Contains(got, "secret") {
			t.Errorf("%q is left in %q", value, got)
		}
	})
}
