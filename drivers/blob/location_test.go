package blob

import (
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	for _, tt := range []struct {
		url  string
		want Location
	}{
		{"s3://bucket", Location{Scheme: "s3", Bucket: "bucket"}},
		{"s3://bucket/", Location{Scheme: "s3", Bucket: "bucket"}},
		{"s3://bucket/a/b", Location{Scheme: "s3", Bucket: "bucket", Prefix: "a/b/"}},
		{"s3://bucket/a/b/", Location{Scheme: "s3", Bucket: "bucket", Prefix: "a/b/"}},
		{"s3://bucket/a%20b%23?region=eu-west-1", Location{Scheme: "s3", Bucket: "bucket", Prefix: "a b#/", Region: "eu-west-1"}},
		{"s3://b?endpoint=http://127.0.0.1:9000/", Location{Scheme: "s3", Bucket: "b", Endpoint: "http://127.0.0.1:9000", PathStyle: true}},
		{"s3://b?endpoint=minio.example.org&path_style=false", Location{Scheme: "s3", Bucket: "b", Endpoint: "https://minio.example.org"}},
		{"s3://b?path_style=false&endpoint=minio.example.org", Location{Scheme: "s3", Bucket: "b", Endpoint: "https://minio.example.org"}},
		{"s3://b?profile=lab&hedge=500ms&anonymous=true", Location{Scheme: "s3", Bucket: "b", Profile: "lab", Hedge: 500 * time.Millisecond, Anonymous: true}},
		{"gs://b/p?anonymous=1", Location{Scheme: "gs", Bucket: "b", Prefix: "p/", Anonymous: true}},
		{"s3://b?requester_pays=true", Location{Scheme: "s3", Bucket: "b", RequesterPays: true}},
		{"gs://b?billing_project=vision-1", Location{Scheme: "gs", Bucket: "b", BillingProject: "vision-1"}},
		{"azblob://c/p?account=acc", Location{Scheme: "azblob", Bucket: "c", Prefix: "p/", Account: "acc"}},
	} {
		if got, err := Parse(tt.url); err != nil || got != tt.want {
			t.Errorf("Parse(%q) = %+v, %v; want %+v", tt.url, got, err, tt.want)
		}
	}
}

func TestParseErrors(t *testing.T) {
	const secret = "aSecretValue"
	for url, want := range map[string]string{
		"":                                   "is none of",
		"/lustre/data":                       "is none of",
		"http://bucket":                      "is none of",
		"s3:///a":                            "has no bucket",
		"s3://%zz" + secret:                  "not a URL",
		"s3://id:" + secret + "@b":           "credentials must not be in the URL",
		"s3://b#a":                           "contains #",
		"s3://b/a//c":                        "not a valid directory name",
		"s3://b/a/../c":                      "not a valid directory name",
		"s3://b/" + strings.Repeat("n", 256): "not a valid directory name",
		"s3://b?regoin=x":                    `unknown option "regoin": the options are account, anonymous, billing_project, endpoint`,
		"s3://b?region=a&region=b":           "option region is given twice",
		"s3://b?account=x":                   "option account: is for azblob:// only",
		"gs://b?region=x":                    "option region: is for s3:// only",
		"gs://b?path_style=true":             "option path_style: is for s3:// only",
		"gs://b?requester_pays=true":         "option requester_pays: is for s3:// only",
		"s3://b?billing_project=x":           "option billing_project: is for gs:// only",
		"gs://b?billing_project=":            "option billing_project: is empty",
		"s3://b?anonymous=true&requester_pays=true": "remove anonymous=true",
		"gs://b?billing_project=x&anonymous=1":      "remove anonymous=true",
		"s3://b?anonymous=maybe":                    `option anonymous: "maybe" is neither true nor false`,
		"s3://b?hedge=5":                            `option hedge: "5" is not a duration`,
		"s3://b?hedge=-5s":                          `option hedge: "-5s" is not a duration`,
		"s3://b?endpoint=ftp://x":                   "option endpoint: is not the URL of a server",
		"s3://b?endpoint=http://u:" + secret + "@x": "option endpoint: contains credentials",
		"s3://b?endpoint=http://x?sig=" + secret:    "option endpoint: is not the URL of a server",
		"s3://b?%zz=" + secret:                      "has an invalid query",
	} {
		_, err := Parse(url)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Parse(%q): got error %v, want %q", url, err, want)
		} else if strings.Contains(err.Error(), secret) {
			t.Errorf("the error of Parse contains a secret: %v", err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, url := range []string{"s3://bucket/a/b?region=x&endpoint=http://h:1", "gs://b/p?anonymous=1", "azblob://c?account=a&hedge=1s", "s3://%", "s3://b/%00"} {
		f.Add(url)
	}
	f.Fuzz(func(t *testing.T, url string) {
		l, err := Parse(url)
		if err != nil {
			return
		}
		if l.Bucket == "" || l.Prefix != "" && !strings.HasSuffix(l.Prefix, "/") || strings.HasPrefix(l.Prefix, "/") || strings.Contains(l.Prefix, "//") {
			t.Errorf("Parse(%q) = %+v", url, l)
		}
	})
}
