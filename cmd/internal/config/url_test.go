package config

import (
	"strings"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

func TestSourceName(t *testing.T) {
	for _, tt := range []struct{ url, name, dataset string }{
		{"s3://bucket", "s3://bucket", "bucket"},
		{"S3://bucket/", "s3://bucket", "bucket"},
		{"gs://bucket/a/b/", "gs://bucket/a/b", "b"},
		{"azblob://data/Image Net", "azblob://data/Image%20Net", "image-20net"},
		{"s3://bucket/a,b\\c%09%23?region=eu-west-1&profile=p&path_style=true&anonymous=true&hedge=1s", "s3://bucket/a,b%5Cc%09%23", "a-b-5cc-09-23"},
		{"s3://bucket/a?region=x&endpoint=https%3A%2F%2Fminio:9000%2F", "s3://bucket/a?endpoint=https://minio:9000", "a"},
		{"s3://bucket/a?endpoint=minio:9000", "s3://bucket/a?endpoint=https://minio:9000", "a"},
		{"s3://bucket/a?endpoint=http://minio:9000", "s3://bucket/a?endpoint=http://minio:9000", "a"},
		{"azblob://data?account=A1&endpoint=http://127.0.0.1:10000/A1", "azblob://data?account=A1&endpoint=http://127.0.0.1:10000/A1", "data"},
		{"azblob://data?account=", "azblob://data", "data"},
	} {
		c := Default()
		if err := c.Set("source.url", tt.url, "test"); err != nil {
			t.Fatal(err)
		}
		name := c.Source.Name()
		if name != tt.name {
			t.Errorf("%s: got %s, want %s", tt.url, name, tt.name)
		}
		if again := (Source{URL: name}).Name(); again != name {
			t.Errorf("%s: the name of the name is %s", name, again)
		}
		if id := DatasetID(name); !strings.HasPrefix(id, tt.dataset+"-") || len(id) != len(tt.dataset)+13 {
			t.Errorf("%s: dataset %s, want %s-…", name, id, tt.dataset)
		}
	}
	if got := (Source{Path: "/data"}).Name(); got != "/data" {
		t.Errorf("got %s for a path", got)
	}
}

// Each bucket and prefix has one folder in a tier, whatever the other options.
func TestDatasetIDOfBuckets(t *testing.T) {
	id := func(url string) string { return DatasetID(Source{URL: url}.Name()) }
	if a, b := id("s3://b/p?region=eu-west-1"), id("s3://b/p/?region=us-east-1&hedge=1s&requester_pays=true"); a != b {
		t.Errorf("got %s and %s for one bucket", a, b)
	}
	seen := make(map[string]string)
	for _, url := range []string{
		"s3://b/p", "gs://b/p", "s3://b/q", "s3://c/p", "s3://b/x/p", "s3://b/p?endpoint=http://x", "s3://b/p?endpoint=https://x",
		"azblob://b/p", "azblob://b/p?account=x", "azblob://b/p?account=y",
	} {
		if other, ok := seen[id(url)]; ok {
			t.Errorf("%s and %s are both %s", url, other, id(url))
		}
		seen[id(url)] = url
	}
}

// No message contains the secret of a URL that is refused.
func TestURLErrors(t *testing.T) {
	const credentials = "contains credentials, or a part that looks like credentials"
	for _, tt := range []struct{ url, want string }{
		{"ftp://geheim", "ftp:// is not one of azblob://, gs://, s3://"},
		{"https://geheim.s3.amazonaws.com/x", "https:// is not one of azblob://, gs://, s3://"},
		{"geheim", "is not a URL"},
		{"s3:geheim", "is not a URL"},
		{"s3:///geheim", "has no bucket"},
		{"s3://minio:9000/geheim", "has a port: the bucket comes first, and a server is an option, such as ?endpoint=https://minio.example.org:9000"},
		{"s3://bucket/a#geheim", "contains #, which must be written as %23"},
		{"s3://bucket/a#", "contains #, which must be written as %23"},
		{"s3://bucket/a?geheim;x=%", "has a query that is not of the form name=value&name=value"},
		{"s3://AKIAIOSFODNN7EXAMPLE:geheim@bucket/a", credentials},
		{"s3://geheim@bucket/a", credentials},
		{"https://user:geheim@bucket/a", credentials},
		{"s3://AKIAIOSFODNN7EXAMPLE:geheim/x@bucket/a", "is not a URL"},
		{"s3://bucket/%geheim", "is not a URL"},
		{"s3://bucket/\ngeheim", "is not a URL"},
		{"s3://bucket?access_key=AKIA&secret_key=geheim", credentials},
		{"s3://bucket?awsAccessKeyId=geheim", credentials},
		{"s3://bucket?X-Amz-Signature=geheim", credentials},
		{"s3://bucket?X-Amz-Credential=geheim", credentials},
		{"s3://bucket?session_token=geheim", credentials},
		{"s3://bucket?region=x&PASSWORD=geheim", credentials},
		{"azblob://data?sv=2024&sig=geheim", credentials},
		{"azblob://data?connection_string=geheim", credentials},
		{"azblob://data?endpoint=https://a.blob.core.windows.net?sig%3Dgeheim", credentials},
		{"gs://bucket?access_token=geheim", credentials},
		{"s3://bucket?endpoint=http://user:geheim@minio", credentials},
		{"s3://bucket?endpoint=user:geheim@minio", credentials},
		{"s3://bucket?endpoint=a&endpoint=http://user:geheim@minio", credentials},
	} {
		for name, err := range map[string]error{
			"Set":       (&Config{}).Set("source.url", tt.url, "option"),
			"SetSource": (&Config{}).SetSource(tt.url, "option"),
		} {
			if name == "SetSource" && !IsURL(tt.url) {
				continue // SetSource takes it as a path
			}
			if got, want := userError(t, err), "option: source.url: "+tt.want; got != want {
				t.Errorf("%s %q:\ngot  %s\nwant %s", name, tt.url, got, want)
			}
			if strings.Contains(err.Error(), "geheim") {
				t.Errorf("%s %q: the message contains the secret: %v", name, tt.url, err)
			}
		}
	}
	var c Config
	if err := c.Set("source.url", "", "option"); err != nil {
		t.Errorf("empty URL: %v", err)
	}
}

func TestURLExpandsVariables(t *testing.T) {
	t.Setenv("MILKWEED_TEST_BUCKET", "data-17")
	c := parse(t, "[source]\nurl = 's3://${MILKWEED_TEST_BUCKET}/a'")
	if got, want := c.Source.URL, "s3://data-17/a"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	t.Setenv("MILKWEED_TEST_BUCKET", "AKIA:geheim@data-17")
	_, err := Parse("tiering.toml", []byte("[source]\nurl = 's3://${MILKWEED_TEST_BUCKET}/a'"))
	if line := userError(t, err); strings.Contains(line, "geheim") {
		t.Errorf("the message contains the secret: %s", line)
	}
}

// SetSource replaces the source that was set before.
func TestSetSource(t *testing.T) {
	for _, tt := range []struct {
		file, source string
		want         Source
	}{
		{"path = '/a'", "/b", Source{Path: "/b"}},
		{"path = '/a'", "gs://b", Source{URL: "gs://b"}},
		{"url = 's3://a'", "/b", Source{Path: "/b"}},
		{"url = 's3://a'", "gs://b", Source{URL: "gs://b"}},
	} {
		c := parse(t, "[source]\nclock_skew = '0s'\n"+tt.file)
		if err := c.SetSource(tt.source, "argument SOURCE"); err != nil {
			t.Fatal(err)
		}
		if c.Source != tt.want {
			t.Errorf("%s, %s: got %+v, want %+v", tt.file, tt.source, c.Source, tt.want)
		}
		if err := c.validateSource(); err != nil {
			t.Error(err)
		}
		given, other := "source.path", "source.url"
		if tt.want.URL != "" {
			given, other = other, given
		}
		if c.Origin(given) != "argument SOURCE" || c.Origin(other) != originDefault {
			t.Errorf("%s, %s: %s is from %s, %s from %s", tt.file, tt.source, given, c.Origin(given), other, c.Origin(other))
		}
	}
	t.Chdir(t.TempDir())
	var c Config
	if err := c.SetSource("./s3://a", "argument SOURCE"); err != nil || !strings.HasSuffix(c.Source.Path, "/s3:/a") {
		t.Errorf("a directory: got %+v, %v", c.Source, err)
	}
}

// A bucket has no consistency window by default, because it takes listings.
func TestConsistencyForBucket(t *testing.T) {
	for file, want := range map[string]time.Duration{
		"[source]\npath = '/a'":                                  time.Minute,
		"[source]\nurl = 's3://a'":                               0,
		"[source]\nurl = 's3://a'\n[mount]\nconsistency = '10m'": 10 * time.Minute,
		"[mount]\nconsistency = '0s'\n[source]\npath = '/a'":     0,
		"[placement]\nworkers = 3\n[source]\nurl = 's3://a'":     0,
	} {
		if got := parse(t, file).Mount.Consistency; got != want {
			t.Errorf("%q: got %v, want %v", file, got, want)
		}
	}
}

func TestDefaultTiersForBucket(t *testing.T) {
	h := testHost(t, nil)
	tiers, _, err := h.defaultTiers("s3://bucket/a")
	if err != nil || len(tiers) != 2 {
		t.Errorf("got %+v, %v; want two tiers (exit code %d)", tiers, err, exit.Of(err))
	}
}
