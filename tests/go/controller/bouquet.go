// The role of this file: the kind that the controller is for, as a user's module declares one, and its definition.
package main

import (
	"encoding/json"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

var groupVersion = schema.GroupVersion{Group: "example.com", Version: "v1"}

// Bouquet is some flowers.
type Bouquet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   BouquetSpec   `json:"spec"`
	Status BouquetStatus `json:"status,omitempty"`
}

// BouquetSpec says which flowers.
type BouquetSpec struct {
	Flower string `json:"flower"`
	Count  int32  `json:"count"`
	Wrap   string `json:"wrap,omitempty"`
}

// BouquetStatus says what was made of it.
type BouquetStatus struct {
	Made               int32 `json:"made,omitempty"`
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// BouquetList is a list of them.
type BouquetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Bouquet `json:"items"`
}

// DeepCopyObject copies all of it.
func (b *Bouquet) DeepCopyObject() runtime.Object {
	out := *b
	out.ObjectMeta = *b.ObjectMeta.DeepCopy()
	return &out
}

// DeepCopyObject copies all of it.
func (l *BouquetList) DeepCopyObject() runtime.Object {
	out := *l
	out.ListMeta = *l.ListMeta.DeepCopy()
	out.Items = make([]Bouquet, len(l.Items))
	for i := range l.Items {
		out.Items[i] = *l.Items[i].DeepCopyObject().(*Bouquet)
	}
	return &out
}

func addToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(groupVersion, &Bouquet{}, &BouquetList{})
	metav1.AddToGroupVersion(scheme, groupVersion)
	return nil
}

// bouquetConfiguration is what one applies: the fields that are named, and no others.
func bouquetConfiguration(name string, spec map[string]any) runtime.ApplyConfiguration {
	object := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	object.SetGroupVersionKind(groupVersion.WithKind("Bouquet"))
	object.SetNamespace(namespace)
	object.SetName(name)
	return client.ApplyConfigurationFromUnstructured(object)
}

func definition() *apiextensionsv1.CustomResourceDefinition {
	one := 1.0
	paper := apiextensionsv1.JSON{Raw: must(json.Marshal("paper"))}
	integer := func() apiextensionsv1.JSONSchemaProps { return apiextensionsv1.JSONSchemaProps{Type: "integer"} }
	count := apiextensionsv1.JSONSchemaProps{Type: "integer", Format: "int32", Minimum: &one}
	spec := apiextensionsv1.JSONSchemaProps{
		Type:     "object",
		Required: []string{"flower", "count"},
		Properties: map[string]apiextensionsv1.JSONSchemaProps{
			"flower": {Type: "string"},
			"count":  count,
			"wrap":   {Type: "string", Default: &paper},
		},
	}
	status := apiextensionsv1.JSONSchemaProps{
		Type:       "object",
		Properties: map[string]apiextensionsv1.JSONSchemaProps{"made": integer(), "observedGeneration": integer()},
	}
	whole := &apiextensionsv1.JSONSchemaProps{
		Type:       "object",
		Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": spec, "status": status},
	}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "bouquets.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: groupVersion.Group,
			Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "bouquets", Kind: "Bouquet"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: groupVersion.Version, Served: true, Storage: true,
				Schema:       &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: whole},
				Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
			}},
		},
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
