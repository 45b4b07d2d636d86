package blob

import (
	"cmp"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
)

// googleCloud is Google Cloud Storage. It sends two kinds of requests, and sends them
// itself: Google's library links gRPC and OpenTelemetry, and took 20 MB (docs/performance.md).
// As in that library, listings use the JSON API, and content the XML API.
type googleCloud struct {
	client   *http.Client // signs requests
	endpoint string       // URL without a "/" at the end
	bucket   string
	project  string         // to which requests are charged; "": that of the bucket
	tokens   *tokenProvider // nil: requests are not signed
}

var _ vendor = (*googleCloud)(nil)

// readOnlyScope is the scope of the tokens.
const readOnlyScope = "https://www.googleapis.com/auth/devstorage.read_only"

func connectGCS(l Location, t *transport) (vendor, error) {
	if name := googleEndpointVariable(); l.Endpoint == "" && name != "" {
		return nil, invalid(name + " names an endpoint: add endpoint= to the URL, which must identify the dataset")
	}
	g := &googleCloud{
		client:   &http.Client{Transport: t, CheckRedirect: noRedirect},
		endpoint: cmp.Or(l.Endpoint, "https://storage.googleapis.com"),
		bucket:   l.Bucket,
		project:  l.BillingProject,
	}
	if l.Anonymous {
		return g, nil
	}
	if !confidential(l.Endpoint) {
		return nil, invalid("the endpoint is not https://, so others could read the credentials in transit: use https://, or add anonymous=true if the endpoint needs no credentials")
	}
	g.tokens = &tokenProvider{}
	g.tokens.findCredentials = func() (oauth2.TokenSource, error) { return googleCredentials(&g.tokens.transport) }
	if _, err := g.tokens.source(); err != nil {
		return nil, err
	}
	g.client.Transport = &signer{g.tokens, t}
	return g, nil
}

// googleEndpointVariable returns the name of the environment variable that selects an
// endpoint for Google's own tools, "" if none does.
func googleEndpointVariable() string {
	if os.Getenv("STORAGE_EMULATOR_HOST") != "" {
		return "STORAGE_EMULATOR_HOST"
	}
	if cmp.Or(os.Getenv("GOOGLE_CLOUD_UNIVERSE_DOMAIN"), "googleapis.com") != "googleapis.com" {
		return "GOOGLE_CLOUD_UNIVERSE_DOMAIN"
	}
	return ""
}

// confidential reports whether requests to an endpoint stay secret in transit: they
// are encrypted, or do not leave this machine.
func confidential(endpoint string) bool {
	u, err := url.Parse(endpoint)
	if err != nil {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Scheme != "http" || u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

// googleCredentials returns Google's Application Default Credentials. They request
// tokens through t.
func googleCredentials(t *tokenTransport) (oauth2.TokenSource, error) {
	client := &http.Client{Transport: t, Timeout: credentialsTimeout}
	c, err := google.FindDefaultCredentials(context.WithValue(context.Background(), oauth2.HTTPClient, client), readOnlyScope)
	if err != nil {
		return nil, err
	}
	return c.TokenSource, nil
}

func (g *googleCloud) list(ctx context.Context, prefix, delimiter, token string, maxKeys int) (page, error) {
	query := url.Values{
		"maxResults":  {strconv.Itoa(maxKeys)},
		"fields":      {"nextPageToken,prefixes,items(name,size,timeCreated,generation)"},
		"prettyPrint": {"false"},
	}
	for parameter, value := range map[string]string{"prefix": prefix, "delimiter": delimiter, "pageToken": token, "userProject": g.project} {
		if value != "" {
			query.Set(parameter, value)
		}
	}
	body, err := g.get(ctx, "/storage/v1/b/"+url.PathEscape(g.bucket)+"/o?"+query.Encode(), http.Header{})
	if err != nil {
		return page{}, err
	}
	defer body.Close()
	data, err := io.ReadAll(body) // transport.go bounds its length
	if err != nil {
		return page{}, err
	}
	return parseGooglePage(data)
}

// parseGooglePage parses a page of a listing in JSON.
func parseGooglePage(data []byte) (page, error) {
	var listed struct {
		Items []struct {
			Name string `json:"name"`
			Size int64  `json:"size,string"`
			// Not the time of the last update, which is also that of a change of metadata.
			Created    time.Time `json:"timeCreated"`
			Generation int64     `json:"generation,string"`
		} `json:"items"`
		Prefixes []string `json:"prefixes"`
		Next     string   `json:"nextPageToken"`
	}
	if err := json.Unmarshal(data, &listed); err != nil {
		return page{}, fmt.Errorf("%w: %w", errNoListing, err)
	}
	p := page{items: make([]item, 0, len(listed.Items)+len(listed.Prefixes)), next: listed.Next}
	for _, o := range listed.Items {
		p.items = append(p.items, item{key: o.Name, size: o.Size, mtime: o.Created, version: generationVersion(o.Generation)})
	}
	for _, prefix := range listed.Prefixes {
		p.items = append(p.items, item{key: prefix, dir: true})
	}
	return p, nil
}

// generationVersion returns a generation as a version. The generation 0 is that of an
// object that does not exist.
func generationVersion(generation int64) string {
	if generation == 0 {
		return ""
	}
	return strconv.FormatInt(generation, 10)
}

func (g *googleCloud) read(ctx context.Context, key, version string, off, n int64) (io.ReadCloser, error) {
	header := http.Header{
		// Without it, Google decompresses some objects. Their ranges and sizes would not
		// match the listing.
		"Accept-Encoding": {"gzip"},
		"Range":           {byteRange(off, n)},
	}
	if version != "" {
		header.Set("X-Goog-If-Generation-Match", version)
	}
	if g.project != "" {
		header.Set("X-Goog-User-Project", g.project)
	}
	return g.get(ctx, "/"+url.PathEscape(g.bucket)+"/"+url.PathEscape(key), header)
}

// get sends a request for a resource, which is a path and a query, and returns the
// body of the response. The caller closes it.
func (g *googleCloud) get(ctx context.Context, resource string, header http.Header) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, g.endpoint+resource, nil)
	if err != nil {
		return nil, err
	}
	r.Header = header
	resp, err := g.client.Do(r)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 == 2 {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body) // transport.go bounds its length
	return nil, errors.Join(parseGoogleError(body), err)
}

// codeRequesterPays is the error code of Google for a request to a bucket whose requester pays, without a project.
const codeRequesterPays = "UserProjectMissing"

// A googleError is the error in a response. It is empty if the response has no body.
type googleError struct{ code, text string }

func (e *googleError) Error() string { return cmp.Or(e.text, e.code, "the response has no message") }

// parseGoogleError parses the body of an error response, which is JSON or XML. Any
// other body, such as that of a proxy, becomes the text.
func parseGoogleError(body []byte) *googleError {
	var reply struct {
		Error struct {
			Message string `json:"message"`
			Errors  []struct {
				Reason string `json:"reason"`
			} `json:"errors"`
		} `json:"error"`
	}
	if json.Unmarshal(body, &reply) == nil && reply.Error.Message != "" {
		e := &googleError{text: reply.Error.Message}
		if len(reply.Error.Errors) > 0 {
			e.code = reply.Error.Errors[0].Reason
		}
		if strings.Contains(strings.ToLower(e.text), "requester pays") {
			e.code = codeRequesterPays // the reason is only "required"
		}
		return e
	}
	var document struct {
		XMLName xml.Name `xml:"Error"`
		Code    string
		Message string
		Details string // such as the permission that is missing
	}
	if xml.Unmarshal(body, &document) == nil {
		return &googleError{code: document.Code, text: strings.TrimSpace(document.Message + " " + document.Details)}
	}
	return &googleError{text: string(body)}
}

// revision implements vendor. The time in a response is that of the last change of the object or of its
// metadata, which is not that in a listing, and a generation needs none.
func (g *googleCloud) revision(h http.Header) revision {
	return revision{version: h.Get("X-Goog-Generation")}
}

func (g *googleCloud) failure(err error) (code, text string) {
	if e, ok := errors.AsType[*googleError](err); ok {
		return e.code, e.text
	}
	if e, ok := errors.AsType[*oauth2.RetrieveError](err); ok {
		// Not e.Error(), which contains the whole response body. Some errors have nothing but that.
		var reply struct {
			Code string `json:"error"`
			Text string `json:"error_description"`
		}
		if json.Unmarshal(e.Body, &reply) != nil {
			reply.Code, reply.Text = "", ""
		}
		return cmp.Or(e.ErrorCode, reply.Code, "no token"), cmp.Or(e.ErrorDescription, reply.Text, e.Response.Status)
	}
	return "", ""
}

func (g *googleCloud) refreshCredentials(began time.Time) { g.tokens.refresh(began) }

func (g *googleCloud) identity(context.Context) (string, error) {
	if g.tokens == nil {
		return "anonymous", nil
	}
	if _, err := g.tokens.source(); err != nil {
		return "", fmt.Errorf("application default credentials: %w", err)
	}
	if file := os.Getenv("GOOGLE_APPLICATION_CREDENTIALS"); file != "" {
		return "the application default credentials in " + file, nil
	}
	return "application default credentials", nil
}
