package kubetest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

// installed returns a file or folder that .ci/deps.sh has installed in the cache of the user. The
// versions are those of .ci/deps.sh.
func installed(dep, pattern string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	found, err := filepath.Glob(filepath.Join(cache, "milkweed-test", pattern))
	if err != nil {
		return "", err
	}
	if len(found) != 1 {
		return "", fmt.Errorf("%s is not installed, or more than once: run .ci/deps.sh %s: %q", pattern, dep, found)
	}
	return found[0], nil
}

// Build returns what kustomize makes of a folder, as kubectl apply -k does.
func Build(folder string) ([]byte, error) {
	program, err := installed("kustomize", "bin/kustomize")
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program, "build", folder)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("kustomize build %s: %w\n%s", folder, err, errs.String())
	}
	return out, nil
}

// Schemas are a folder with the schemas of Kubernetes and of Fluid.
type Schemas string

// WriteSchemas writes the schemas into dir.
func WriteSchemas(dir string) (Schemas, error) {
	return Schemas(dir), errors.Join(kubernetesSchemas(dir), fluidSchemas(dir))
}

// Validate checks the objects of a YAML stream against the schemas. A field that a schema does not
// have is an error, and so is a kind without a schema. The schemas have no rules that concern several
// fields, and no lists of permitted words.
func (s Schemas) Validate(manifests []byte) error {
	program, err := installed("kubeconform", "bin/kubeconform")
	if err != nil {
		return err
	}
	cmd := exec.Command(program, "-strict", "-summary", "-output", "text", "-schema-location", string(s)+"/{{.ResourceKind}}{{.KindSuffix}}.json")
	cmd.Stdin = bytes.NewReader(manifests)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("kubeconform: %w\n%s", err, out)
	}
	if !bytes.Contains(out, []byte("Skipped: 0")) {
		return fmt.Errorf("kubeconform skipped an object\n%s", out)
	}
	return nil
}

// writeSchema writes the schema of a kind under the name that kubeconform makes of it.
func writeSchema(dir, group, version, kind string, schema any) error {
	data, err := json.Marshal(schema)
	if err != nil {
		return err
	}
	if group, _, _ = strings.Cut(group, "."); group != "" {
		group += "-"
	}
	name := strings.ToLower(fmt.Sprintf("%s-%s%s.json", kind, group, version))
	return os.WriteFile(filepath.Join(dir, name), data, 0o644)
}

// kubernetesSchemas writes the schemas of the kinds of Kubernetes, from its OpenAPI document.
func kubernetesSchemas(dir string) error {
	path, err := installed("kubernetes", "kubernetes@*/swagger.json")
	if err != nil {
		return err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var document struct{ Definitions map[string]any }
	if err := json.Unmarshal(data, &document); err != nil {
		return err
	}
	const prefix = "io.k8s.apimachinery.pkg."
	closeSchema(document.Definitions)
	document.Definitions[prefix+"util.intstr.IntOrString"] = map[string]any{"type": []string{"string", "integer"}}
	document.Definitions[prefix+"api.resource.Quantity"] = map[string]any{"type": []string{"string", "number"}}
	if data, err = json.Marshal(document.Definitions); err != nil {
		return err
	}
	all := bytes.ReplaceAll(data, []byte(`"#/definitions/`), []byte(`"definitions.json#/`))
	if err := os.WriteFile(filepath.Join(dir, "definitions.json"), all, 0o644); err != nil {
		return err
	}
	for name, definition := range document.Definitions {
		kinds, _ := definition.(map[string]any)["x-kubernetes-group-version-kind"].([]any)
		for _, k := range kinds {
			k := k.(map[string]any)
			schema := map[string]any{"$ref": "definitions.json#/" + name}
			if err := writeSchema(dir, k["group"].(string), k["version"].(string), k["kind"].(string), schema); err != nil {
				return err
			}
		}
	}
	return nil
}

// fluidSchemas writes the schemas of the kinds of Fluid, from its CustomResourceDefinitions.
func fluidSchemas(dir string) error {
	bases, err := installed("fluid", "fluid@*/bases")
	if err != nil {
		return err
	}
	files, err := filepath.Glob(bases + "/*.yaml")
	if err != nil {
		return err
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var crd struct {
			Spec struct {
				Group    string
				Names    struct{ Kind string }
				Versions []struct {
					Name   string
					Schema struct {
						OpenAPIV3Schema map[string]any `yaml:"openAPIV3Schema"`
					}
				}
			}
		}
		if err := yaml.Unmarshal(data, &crd); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		for _, v := range crd.Spec.Versions {
			closeSchema(v.Schema.OpenAPIV3Schema)
			if err := writeSchema(dir, crd.Spec.Group, v.Name, crd.Spec.Names.Kind, v.Schema.OpenAPIV3Schema); err != nil {
				return err
			}
		}
	}
	return nil
}

// closeSchema makes each object in a schema that lists its properties refuse others, as the API server
// does for kubectl.
func closeSchema(schema any) {
	switch s := schema.(type) {
	case map[string]any:
		_, lists := s["properties"].(map[string]any)
		if keep, _ := s["x-kubernetes-preserve-unknown-fields"].(bool); lists && !keep && s["additionalProperties"] == nil && isSchema(s) {
			s["additionalProperties"] = false
		}
		for _, value := range s {
			closeSchema(value)
		}
	case []any:
		for _, value := range s {
			closeSchema(value)
		}
	}
}

// isSchema distinguishes a schema of an object from a list of properties of which one has the name
// "properties".
func isSchema(s map[string]any) bool {
	kind, ok := s["type"].(string)
	return ok && kind == "object"
}
